"""The blocks of docs/integrations.md and the examples of libraries run with the installed libraries
and print what they say.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest
from helpers.pages import blocks, printed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
HEAD, *SECTIONS, _ = re.split(r"^## ", PAGE, flags=re.M)  # tests/test_guides.py runs the last one


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_blocks(section, tmp_path, monkeypatch, capsys):
    """A comment `# -> text` is a line that the block prints."""
    title, _, text = section.partition("\n")
    monkeypatch.chdir(tmp_path)
    program = "\n".join(body for language, _, body in blocks(HEAD + text) if language == "python")
    exec(compile(program, title, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert printed(program) and capsys.readouterr().out.splitlines() == printed(program)


QUERY = re.escape("Query: Is the finally clause executed if a return statement is reached?")
ANSWER = r'When "return" passes control out of a "try" statement with a "finally"'


@pytest.mark.parametrize(
    ("script", "library", "patterns"),
    [
        ("langchain_sources.py", "langchain_core", [rf"^\[\d\] {ANSWER} .* \(return:\d+-\d+\)$"]),
        ("llama_index_query.py", "llama_index", [QUERY, rf"^chapter: return\n\n{ANSWER}$"]),
        (
            "haystack_pipeline.py",
            "haystack",
            [r'^-?\d\.\d\d  return:\d+-\d+  When "return" passes control out of a "try" .*$'],
        ),
        (
            "mteb_own_task.py",
            "mteb",
            [r"\Avectors: nDCG@10 0\.[6-9]\d\d\nindex: nDCG@10 (0\.[6-9]\d\d|1\.000)\n\Z"],
        ),
        ("integrations/chroma_collection.py", "chromadb", [r"\A[\['\s]*gc"]),
        ("integrations/lancedb_table.py", "lancedb", [r"\A[\['\s]*Objects"]),
        ("integrations/pyterrier_pipeline.py", "pyterrier", [r"\A[\['\s]*gc"]),
        ("integrations/rerankers_ranker.py", "rerankers", [r"\A[\['\s]*gc"]),
    ],
)
def test_examples(script, library, patterns, monkeypatch, capsys):
    pytest.importorskip(library)
    monkeypatch.setattr(sys, "argv", [script])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    out = capsys.readouterr().out
    assert all(re.search(pattern, out, re.M) for pattern in patterns), out
