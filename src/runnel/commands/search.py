"""`runnel search`: documents of an index, with the sentences that answer a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands import loading
from runnel.commands.display import note_compiling, one_line, print_json, stdout_console
from runnel.commands.index_update import expect_project, refresh_project
from runnel.commands.options import Json, Query, refuse
from runnel.errors import InputError
from runnel.records import normalize
from runnel.text.documents.document import end_of_text_below

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.records import Hit, Sentence
    from runnel.search.records import Settings

log = logging.getLogger("runnel")
_SIGNS = ("!=", "<=", ">=", "=", "<", ">")


def search(
    query: Query,
    place: Annotated[
        str | None,
        typer.Option("--in", metavar="DIR", help="Folder or URI of the index (default: the project's own).", show_default=False),
    ] = None,
    no_update: Annotated[bool, typer.Option("--no-update", help="Do not bring the project's index up to date first.")] = False,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Documents to show.")] = 10,
    rerank: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to rerank; default 50 if the index remembers them, else none.", show_default=False),
    ] = None,
    dense_weight: Annotated[
        float | None,
        typer.Option(min=0, help="Weight of meaning, where that of words is 1 (default: by the model).", show_default=False),
    ] = None,
    read: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to show sentences of; default: all remembered, else 5.", show_default=False),
    ] = None,
    sentences: Annotated[int, typer.Option("--sentences", "-s", min=0, help="Sentences to show of each of them.")] = 3,
    conditions: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help="Filter, e.g. year>=2020; all must hold.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The index's model, if it has moved.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Show the documents of an index that answer QUERY, by meaning and by words, each with its answering sentences.

    Without --in: the project's own index, made by `runnel index` in the working directory or in a folder above it. It is first
    brought up to date with the files.
    """
    refuse({"--no-update": no_update and place is not None}, "has no effect with --in, which is never updated")
    note_compiling()
    start = time.perf_counter()
    project = expect_project() if place is None else None
    place = str(project.place) if project is not None else place or ""
    index = loading.open_index(place, model)
    timings = {"open": time.perf_counter() - start}
    if project is not None and not no_update:
        refresh_project(project, index)
        timings["update"] = time.perf_counter() - start - timings["open"]
    where = parse_conditions(conditions or [], index.store.settings)
    hits = index.search(
        query, top_k, where=where, dense_weight=dense_weight, rerank=rerank, read=read, sentences=sentences, timings=timings
    )
    log.info("%s", ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in timings.items()))
    if as_json:
        print_json({"query": query, "index": place, "documents": [_as_json(hit) for hit in hits], "seconds": timings})
    else:
        _show(stdout_console(), hits)
    return 0


def parse_conditions(given: Sequence[str], settings: Settings) -> dict[str, dict[str, Any]]:
    """Parse a filter from NAME=VALUE, NAME!=VALUE, NAME>=VALUE and so on; values are read as the field's type says.

    Raises:
        InputError: none of these, an unknown field, or a value of another type.
    """
    where: dict[str, dict[str, Any]] = {}
    for text in given:
        place, sign = min(
            ((text.find(sign), sign) for sign in _SIGNS if sign in text), default=(0, ""), key=lambda p: (p[0], -len(p[1]))
        )
        name, value = text[:place].strip(), text[place + len(sign) :].strip()
        if not sign or name not in settings.fields:
            known = ", ".join(sorted(settings.fields)) or "none"
            raise InputError(f"--where is {text!r}; expected NAME=VALUE or another comparison with one of the fields: {known}")
        where.setdefault(name, {})[sign] = _value(value, settings.fields[name], text)
    return where


def _value(text: str, kind: str, condition: str) -> Any:
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return {"str": str, "int": int, "float": float}[kind](text)
    except (KeyError, ValueError):
        raise InputError(f"--where is {condition!r}, but {text!r} is not of the field's type {kind}") from None


def _as_json(hit: Hit) -> dict[str, object]:
    sentences = []
    for sentence in hit.sentences:
        page, headings = hit.places.at(sentence.start)
        sentences.append(asdict(sentence) | {"after": _below(hit, sentence), "page": page, "headings": headings})
    facts = {"id": hit.id, "rank": hit.rank, "score": hit.score, "title": hit.title, "source": hit.source}
    return facts | {"metadata": dict(hit.metadata), "sentences": sentences}


def _below(hit: Hit, sentence: Sentence) -> str:
    """Return the first sentence below a heading; "" if the sentence is not one."""
    text = hit.text or ""
    return text[sentence.end : end_of_text_below(text, sentence.start, sentence.end, hit.places.kind_at)]


def _show(console: Console, hits: Sequence[Hit]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if not hits:
        console.print("nothing found", style="dim")
    for hit in hits:
        head = Text(f"{hit.rank:>2}. ")
        head.append(one_line(hit.title or hit.id), style="bold cyan")
        head.append(f"  {hit.score:.4f}", style="dim")
        console.print(head, soft_wrap=True)
        if hit.title:
            console.print(Text("    " + one_line(hit.id), style="dim"), soft_wrap=True)
        for sentence in hit.sentences:
            page, headings = hit.places.at(sentence.start)
            where = ", ".join([*([f"page {page:,}"] if page else []), *([" › ".join(headings)] if headings else [])])
            body = Text(normalize(sentence.text))
            body.append(f"  ({one_line(where) or f'characters {sentence.start}-{sentence.end}'})", style="dim italic")
            console.print(Padding(body, (0, 0, 0, 4)))
            if below := _below(hit, sentence):
                console.print(Padding(Text(normalize(below), style="dim"), (0, 0, 0, 6)))
        console.print()
