"""The blocks of docs/integrations.md and the examples of libraries run with the installed libraries and print what they say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
HEAD, *SECTIONS, _ = re.split(r"^## ", PAGE, flags=re.M)  # tests/test_guides.py runs the last one
# title of the section -> the libraries that its blocks import
TITLES = {"LangChain", "LlamaIndex", "Haystack", "sentence-transformers"}


def test_every_section_is_run():
    assert {section.partition("\n")[0] for section in SECTIONS} == TITLES


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_blocks(section, tmp_path, monkeypatch, capsys):
    """A comment `# -> text` is a line that the block prints."""
    title, _, text = section.partition("\n")
    monkeypatch.chdir(tmp_path)
    program = "\n".join(BLOCK.findall(HEAD) + BLOCK.findall(text))
    exec(compile(program, title, "exec", dont_inherit=True), {"__name__": "__main__"})
    shown = re.findall(r"^ *# -> (.*)$", program, re.M)
    printed = capsys.readouterr().out.splitlines()
    assert shown and printed == shown


def run(script, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    return capsys.readouterr().out


def test_langchain_sources(monkeypatch, capsys):
    printed = run("langchain_sources.py", monkeypatch, capsys)
    assert "Question: Is the finally clause executed if a return statement is reached?" in printed
    assert re.search(
        r'^\[\d\] When "return" passes control out of a "try" statement with a "finally" .* \(return:\d+-\d+\)$', printed, re.M
    )


def test_llama_index_query(monkeypatch, capsys):
    printed = run("llama_index_query.py", monkeypatch, capsys)
    assert "Query: Is the finally clause executed if a return statement is reached?" in printed
    lines = re.findall(r"^chapter: (\w+)\n\n(.*)$", printed, re.M)
    assert ("return", 'When "return" passes control out of a "try" statement with a "finally"') in lines


def test_haystack_pipeline(monkeypatch, capsys):
    lines = run("haystack_pipeline.py", monkeypatch, capsys).splitlines()
    assert any(
        re.fullmatch(r'-?\d\.\d\d  return:\d+-\d+  When "return" passes control out of a "try" .*', line) for line in lines
    )


@pytest.mark.parametrize(
    ("script", "library", "first"),
    [
        ("chroma_collection.py", "chromadb", "gc"),
        ("lancedb_table.py", "lancedb", "Objects"),
        ("pyterrier_pipeline.py", "pyterrier", "gc"),
        ("rerankers_ranker.py", "rerankers", "gc"),
    ],
)
def test_examples_of_other_libraries(script, library, first, monkeypatch, capsys):
    pytest.importorskip(library)
    assert run(f"integrations/{script}", monkeypatch, capsys).lstrip("[']").startswith(first)


def test_mteb_own_task(monkeypatch, capsys):
    printed = run("mteb_own_task.py", monkeypatch, capsys)
    assert re.fullmatch(r"vectors: nDCG@10 0\.[6-9]\d\d\nindex: nDCG@10 (0\.[6-9]\d\d|1\.000)\n", printed)
