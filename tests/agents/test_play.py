"""An agent by rule asks 15 questions about 30 files of several kinds: `search` once; then, if the
answer was not among what it saw, `find` in the first document.

The rule, the questions and the patterns of their answers were written before the first measurement;
defaults of the tools were chosen with other documents and questions.
"""

import html
import re
import textwrap
from functools import partial
from pathlib import Path

import anyio
import pytest
from docx import Document
from helpers.document_files import pdf
from mcp import Client

from runnel.agents.documents import AgentSettings
from runnel.agents.server import create_server
from runnel.agents.tools import Tools
from runnel.records import normalize
from runnel.search.index import Index

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "LICENSE"]
EXAMPLES = ("stream_embedding.py", "python_questions.py", "finetune_pairs.py", "mteb_own_task.py")
FILES = 30
QUESTIONS = {
    "how many tokens does one step run at most on a processor": r"at most 1,024 tokens",
    "how big is the memory that pocket-mamba2 carries along": r"1\.2 MiB",
    "how much disk space does the installation without torch need": r"The base takes \d+ MB",
    "what happens to the speaker notes of slides": r"Speaker notes and footnotes are notes",
    "can it open old Word files from the nineties": r"Office files from before 2007",
    "who can read a new index on a machine with many users": r"for the current user only",
    "what if two rows to rank have the same id": r"a repeated id is one too",
    "is my whole document sent to the language model": r"Only the question and the excerpts are",
    "how does the prompt keep a document from inventing an excerpt": r"lines with a random mark",
    "do the logs of the server contain what users asked": r"Logs have no texts",
    "what do I lose if I sue somebody over patents in it": r"terminate as of the date such",
    "which make target repairs formatting": r"make fix",
    "how many documents can one index hold": r"one index to 10\^?7 documents",
    "what may the columns of training pairs be called": r"sentence1",
    "when does a recurrent model pay": r"pays where a text never ends",
}


def as_html(text: str) -> bytes:
    blocks = [html.escape(block) for block in text.split("\n\n")]
    parts = [
        f"<h2>{block.lstrip('# ')}</h2>" if block.startswith("#") else f"<p>{block}</p>"
        for block in blocks
    ]
    return f"<html><body>{''.join(parts)}</body></html>".encode()


def as_pdf(text: str) -> bytes:
    text = text.encode("ascii", errors="replace").decode()
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, 90) or [None]]
    return pdf([lines[start : start + 50] for start in range(0, len(lines), 50)])


def write_docx(text: str, path: Path) -> None:
    document = Document()
    for block in text.split("\n\n"):
        if block.startswith("#"):
            document.add_heading(block.lstrip("# "), level=1)
        else:
            document.add_paragraph(block)
    document.save(path)


@pytest.fixture
def folder(tmp_path):
    """The pages of the project as files of five kinds, and some of its programs."""
    for path in [*PAGES, *(ROOT / "examples" / name for name in EXAMPLES)][:FILES]:
        text = path.read_text(encoding="utf-8")
        target = tmp_path / "-".join(path.relative_to(ROOT).parts)
        if path.stem in ("answers", "data", "how-it-works"):
            target.with_suffix(".html").write_bytes(as_html(text))
        elif path.stem in ("scale", "SECURITY"):
            target.with_suffix(".pdf").write_bytes(as_pdf(text))
        elif path.stem in ("embed", "choose"):
            write_docx(text, target.with_suffix(".docx"))
        else:
            target.write_text(text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == FILES
    return tmp_path


async def play(tools, question, answer):
    """Ask one question; return whether the answer was seen, the calls and the characters."""
    sizes = []

    async with Client(create_server(tools)) as client:

        async def ask(tool, **arguments):
            result = await client.call_tool(tool, {"query": question} | arguments)
            sizes.append(len(result.model_dump_json(by_alias=True, exclude_none=True)))
            return result.content[0].text

        text = await ask("search")
        if not re.search(answer, normalize(text)):
            text = await ask("find", file=re.search(r"^index:\S+", text, re.MULTILINE)[0])
    return re.search(answer, normalize(text)) is not None, len(sizes), sum(sizes)


def test_an_agent_sees_answers_in_few_calls_and_characters(folder, tmp_path_factory):
    library = tmp_path_factory.mktemp("play") / "library"
    with Index.create(library) as index:
        added = index.add_files([folder]).added
        texts = [normalize(row.text) for row in index.store.documents(added).values()]
    for answer in QUESTIONS.values():  # otherwise a page has changed: ask something else
        assert any(re.search(answer, text) for text in texts), answer
    tools = Tools(AgentSettings((folder,), str(library)))
    results = [anyio.run(partial(play, tools, *item)) for item in QUESTIONS.items()]
    for question, result in zip(QUESTIONS, results, strict=True):
        print(question, *result)
    seen, calls, characters = (sum(column) for column in zip(*results, strict=True))
    assert seen >= 12
    assert calls <= 2 * len(QUESTIONS) and characters <= 6000 * len(QUESTIONS)
