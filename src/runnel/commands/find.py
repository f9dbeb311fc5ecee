"""`runnel find`: the sentences of files that answer a query."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from runnel.commands.display import Meter, describe, note_compiling, print_json, say, stdout_console
from runnel.errors import InputError, MissingDependency, ReadError
from runnel.records import Sentence
from runnel.text.documents.canonical import DocumentText
from runnel.text.documents.reader import DocumentReader

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.models.sentence_retriever import SentenceRetriever

_INDENT = " " * 4
_BAR = 10  # characters of a full score bar
_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters that mark the sentence while its context is laid out


@dataclass(frozen=True)
class Found:
    """A sentence with the place it was found in. `line` (of the canonical text) and `page` count from 1; `id` is a row's."""

    file: str
    line: int
    sentence: Sentence
    before: str
    after: str
    kind: str = "txt"
    page: int | None = None
    headings: tuple[str, ...] = ()
    id: str | None = None

    @property
    def place(self) -> str:
        """What one would look for in the file itself: its lines, if it is text."""
        if self.id is not None:
            return f"{self.file}, row {self.id}"
        if self.page is not None:
            return f"{self.file}, page {self.page:,}"
        return f"{self.file}:{self.line}" if self.kind in ("txt", "md") else self.file


@dataclass
class Searched:
    """The files of one call: what was read, in which sentences, and what could not be read."""

    found: list[Found] = field(default_factory=list)  # best first
    files: list[dict[str, object]] = field(default_factory=list)
    skipped: list[dict[str, object]] = field(default_factory=list)

    def count(self, file: str, document: DocumentText, sentences: int) -> None:
        """Note a document that was read. The rows of a file are counted together."""
        if document.id is None or not self.files or self.files[-1]["file"] != file:
            facts = {"kind": document.kind, "pages": document.pages, "encoding": document.encoding, "warnings": document.warnings}
            self.files.append({"file": file, **facts, "characters": 0, "sentences": 0})
        for key, more in (("characters", len(document.text)), ("sentences", sentences)):
            self.files[-1][key] = int(str(self.files[-1][key])) + more


def run(
    query: str,
    files: Sequence[str],
    *,
    model: str,
    dtype: str = "auto",
    top_k: int,
    context: int,
    encoding: str | None,
    as_json: bool,
) -> int:
    """Search `files`, print what is found, and return the exit code: 1 if a file could not be read."""
    if not query.strip():
        raise InputError("the query is empty; give the question or the words to look for")
    searched = Searched()
    with DocumentReader(encoding=encoding) as reader:
        documents = _documents(files, reader, searched)
        first = next(documents, None)
        if first is not None:
            note_compiling()
            from runnel.models.sentence_retriever import SentenceRetriever

            search(
                SentenceRetriever.load(model, dtype=dtype),
                query,
                chain([first], documents),
                searched,
                top_k=top_k,
                context=context,
            )
    if as_json:
        sentences = [
            {"file": f.file, "id": f.id, "line": f.line, "page": f.page, "headings": f.headings, **asdict(f.sentence)}
            for f in searched.found
        ]
        print_json({"query": query, "model": model, "sentences": sentences, "files": searched.files, "skipped": searched.skipped})
    else:
        show(stdout_console(), searched)
    return 1 if searched.skipped else 0


def search(
    retriever: SentenceRetriever,
    query: str,
    documents: Iterable[tuple[str, DocumentText]],
    into: Searched,
    *,
    top_k: int,
    context: int,
) -> None:
    """Read (file, document) pairs and keep the `top_k` best sentences of all, each with `context` sentences around it."""
    reading: deque[tuple[str, DocumentText]] = deque()

    def texts() -> Iterator[str]:
        for file, document in documents:
            reading.append((file, document))
            yield document.text

    with Meter("reading") as meter:
        for scored in retriever.score_many(query, texts(), progress=meter):
            file, document = reading.popleft()
            into.count(file, document, len(scored))
            some = _best(file, document, scored, top_k, context)
            into.found = sorted([*into.found, *some], key=lambda f: -f.sentence.score)[:top_k]  # stable: ties in file order


def _best(file: str, document: DocumentText, scored: Sequence[Sentence], top_k: int, context: int) -> list[Found]:
    text = document.text
    best = sorted(scored, key=lambda s: (-s.score, s.index))[:top_k]
    starts = [s.start + len(s.text) - len(s.text.lstrip()) for s in best]
    blocks = [document.block_at(start) for start in starts]
    lines = _line_numbers(text, starts)
    return [
        Found(
            file,
            line,
            sentence,
            before=text[scored[max(0, sentence.index - context)].start : sentence.start],
            after=text[sentence.end : scored[min(len(scored) - 1, sentence.index + context)].end],
            kind=document.kind,
            page=block.page if block else None,
            headings=block.headings if block else (),
            id=document.id,
        )
        for sentence, line, block in zip(best, lines, blocks, strict=True)
    ]


def _documents(files: Sequence[str], reader: DocumentReader, searched: Searched) -> Iterator[tuple[str, DocumentText]]:
    """(name, document) of what can be read and is not empty; the rest is told on stderr, and so is every warning."""
    for name in files:
        shown = "(standard input)" if name == "-" else name
        try:
            for document in reader.read(name):
                for warning in document.warnings:
                    say(f"note: {shown}: {warning}")
                if document.text.strip():
                    yield shown, document
                elif document.id is None:
                    say(f"note: {shown} is empty")
                    searched.count(shown, document, 0)
        except (ReadError, MissingDependency) as error:
            say(f"error: {describe(error)}")
            searched.skipped.append({"file": shown, "reason": describe(error)})


def show(console: Console, searched: Searched) -> None:
    """Print each sentence within its context, under its place and a bar that shows the sigmoid of its score."""
    from rich.text import Text

    for rank, item in enumerate(searched.found, start=1):
        head = Text(f"{rank:>2}. ")
        head.append(printable(item.place), style="bold cyan")
        head.append(f"  characters {item.sentence.start}-{item.sentence.end}  ", style="dim")
        head.append(_bar(_sigmoid(item.sentence.score)), style="green")
        head.append(f" {item.sentence.score:.2f}", style="dim")
        before, marked, after = _in_context(item)
        body = Text(before, style="dim")
        body.append(marked if console.is_terminal else f"»{marked}«", style="bold yellow not dim")
        body.append(after)
        console.print(head, soft_wrap=True)
        if item.headings:
            console.print(Text(_INDENT + printable(" › ".join(item.headings)), style="dim italic"), soft_wrap=True)
        for line in body.wrap(console, console.width - len(_INDENT)):
            line.rstrip()
            console.print(Text(_INDENT) + line)
        console.print()
    read = [f for f in searched.files if f["sentences"]]
    if read:
        where = str(read[0]["file"]) if len(read) == 1 else f"{len(read):,} files"
        sentences, characters = (sum(int(str(f[k])) for f in read) for k in ("sentences", "characters"))
        console.print(f"{len(searched.found)} of {sentences:,} sentences ({characters:,} characters) in {where}", style="dim")


def _line_numbers(text: str, offsets: Sequence[int]) -> list[int]:
    """The line, from 1, of each character offset; one pass over the text."""
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    lines, line = [0] * len(offsets), 1
    for before, now in pairwise([-1, *order]):
        line += text.count("\n", 0 if before < 0 else offsets[before], offsets[now])
        lines[now] = line
    return lines


def _in_context(item: Found) -> tuple[str, str, str]:
    """The text before, in and after the sentence with line breaks undone except at blank lines, safe for a terminal."""
    sentence = item.sentence.text
    core = sentence.strip()
    lead, tail = sentence.partition(core)[::2]
    whole = printable(item.before + lead) + _OPEN + printable(core) + _CLOSE + printable(tail + item.after)
    flowed = "\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", whole.strip()))
    before, _, rest = flowed.partition(_OPEN)
    marked, _, after = rest.partition(_CLOSE)
    return before, marked, after


def printable(text: str) -> str:
    """Control characters would move the cursor or worse; private ones are our own marks."""
    return "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text)


def _sigmoid(score: float) -> float:
    return 0.5 * (1 + math.tanh(score / 2))  # this form does not overflow


def _bar(share: float) -> str:
    """A bar of `_BAR` characters, filled to `share` (0 to 1) in eighths of a character."""
    full, rest = divmod(round(share * _BAR * 8), 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(_BAR, "·")
