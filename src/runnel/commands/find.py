"""`runnel find`: the sentences of files that answer a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runnel.commands import loading
from runnel.commands.display import Meter, note_compiling, one_line, print_json, printable, say, stdout_console
from runnel.commands.options import DTYPES, Dtype, Json, Model, Query
from runnel.errors import InputError
from runnel.files import write
from runnel.search.finding import Answer, FileDocument, Findings, Skipped, open_cache, read_documents
from runnel.search.finding import find as find_sentences
from runnel.text.documents.reader import DocumentReader

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.text.sentences import Unit

_INDENT = " " * 4
_PLURALS: dict[Unit, str] = {"sentence": "sentences", "clauses": "clauses", "paragraph": "paragraphs"}
_ALSO = 3  # the most other places of a sentence to list
_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters that mark the sentence while its context is laid out


def find(
    query: Query,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="txt, md, html, pdf, docx, epub; a row each of jsonl, csv, tsv; - is standard input.",
            show_default=False,
        ),
    ],
    model: Model = "pocket",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to show, over all files together.")] = 5,
    dtype: Dtype = "auto",
    context: Annotated[int, typer.Option("--context", "-c", min=0, help="Sentences to show before and after each one.")] = 1,
    unit: Annotated[
        Literal["sentence", "clauses", "paragraph"] | None,
        typer.Option(help="What is scored and shown (default: what the model was trained on).", show_default=False),
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Text encoding (default: detect, and warn when guessing).")] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Store the encoded files: later questions do not read them again.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write a page for a browser: results and documents.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show the sentences of FILEs that answer QUERY, with their places. Each file is read in one pass, however long."""
    if not query.strip():
        raise InputError("the query is empty; give the question or the words to look for")

    @cache
    def load() -> SentenceRetriever:
        note_compiling()
        from runnel.models.sentence_retriever import SentenceRetriever

        return loading.load(SentenceRetriever.load, model, dtype=DTYPES[dtype])

    skipped: list[Skipped] = []
    stored = open_cache(load, model, (encoding, unit), keep=remember, report=say)
    with DocumentReader(encoding=encoding) as reader, Meter("reading") as meter:
        documents = read_documents(files, reader, skipped, cache=stored, report=say)
        first = next(documents, None)
        if first is None:
            findings = Findings(unit or "sentence")
        elif remember and not load().remembers:
            raise InputError(f"{model} reads the query before the document, so nothing can be remembered; omit --remember")
        else:
            documents = chain([first], documents)
            search = partial(find_sentences, top_k=top_k, context=context, unit=unit, cache=stored, progress=meter)
            findings = search(load(), query, documents) if html is None else _report(html, search, load(), query, documents)
    if as_json:
        print_json({"query": query, "model": model, **findings.as_json(), "skipped": [asdict(one) for one in skipped]})
    else:
        show(stdout_console(), findings)
    return 1 if skipped else 0


def _report(
    path: Path, search: Callable[..., Findings], retriever: SentenceRetriever, query: str, documents: Iterable[FileDocument]
) -> Findings:
    """Search, and write the results and the documents as a page."""
    from runnel.server.report import Report

    report = Report()
    findings = search(retriever, query, documents, on_document=report.add)
    write(path, report.html(query, findings))
    return findings


def show(console: Console, findings: Findings) -> None:
    """Print each sentence in its context, below its place and score."""
    from rich.text import Text

    for rank, item in enumerate(findings.answers, start=1):
        head = Text(f"{rank:>2}. ")
        head.append(one_line(str(item.place)), style="bold cyan")
        head.append(f"  characters {item.sentence.start}-{item.sentence.end}  score {item.sentence.score:.2f}", style="dim")
        before, marked, after = _in_context(item)
        body = Text(before, style="dim")
        body.append(marked if console.is_terminal else f"»{marked}«", style="bold yellow not dim")
        body.append(after)
        console.print(head, soft_wrap=True)
        if item.place.headings:
            console.print(Text(_INDENT + one_line(" › ".join(item.place.headings)), style="dim italic"), soft_wrap=True)
        for line in body.wrap(console, console.width - len(_INDENT)):
            line.rstrip()
            console.print(Text(_INDENT) + line)
        if item.also:
            console.print(Text(_INDENT + one_line(_also(item)), style="dim italic"), soft_wrap=True)
        console.print()
    read = [file for file in findings.files if file.sentences]
    if read:
        where = read[0].file if len(read) == 1 else f"{len(read):,} files"
        units = f"{sum(file.sentences for file in read):,} {_PLURALS[findings.unit]}"
        characters = f"{sum(file.characters for file in read):,} characters"
        console.print(f"{len(findings.answers)} of {units} ({characters}) in {one_line(where)}", style="dim")


def _also(item: Answer) -> str:
    """Return the other places of a sentence, the first few by name."""
    names = list(dict.fromkeys(str(p) if str(p) != p.file else f"{p.file}, characters {p.start}-{p.end}" for p in item.also))
    more = f" and {len(names) - _ALSO:,} more places" if len(names) > _ALSO else ""
    return f"also at {'; '.join(names[:_ALSO])}{more}"


def _in_context(item: Answer) -> tuple[str, str, str]:
    """Return the text before, in and after the sentence with line breaks undone except at blank lines.

    `printable` comes first: it replaces private characters, which mark the sentence afterwards.
    """
    sentence = item.sentence.text
    core = sentence.strip()
    lead, tail = sentence.partition(core)[::2]
    whole = printable(item.before + lead) + _OPEN + printable(core) + _CLOSE + printable(tail + item.after)
    flowed = "\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", whole.strip()))
    before, _, rest = flowed.partition(_OPEN)
    marked, _, after = rest.partition(_CLOSE)
    return before, marked, after
