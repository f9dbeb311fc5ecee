"""`runnel search`: documents of an index, with the sentences that answer a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from runnel.commands.display import note_compiling, one_line, print_json, stdout_console
from runnel.errors import InputError
from runnel.text.answers import end_of_text_below, normalize

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.records import Hit, Sentence
    from runnel.search.records import DocumentRow, Places, Settings

log = logging.getLogger("runnel")
_SIGNS = ("!=", "<=", ">=", "=", "<", ">")


def run(
    query: str,
    *,
    place: str,
    model: str | None,
    top_k: int,
    rerank: int | None,
    read: int | None,
    sentences: int,
    conditions: Sequence[str],
    as_json: bool,
) -> int:
    """Search the index at `place` and print what is found."""
    note_compiling()
    from runnel.search.index import Index

    start = time.perf_counter()
    index = Index.open(place, model)
    timings = {"open": time.perf_counter() - start}
    where = parse_conditions(conditions, index.store.settings)
    hits = index.search(query, top_k, where=where, rerank=rerank, read=read, sentences=sentences, timings=timings)
    log.info("%s", ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in timings.items()))
    rows = index.store.documents([hit.id for hit in hits])
    if as_json:
        found = [_as_json(hit, rows[hit.id]) for hit in hits]
        print_json({"query": query, "index": place, "documents": found, "seconds": timings})
    else:
        _show(stdout_console(), hits, rows)
    return 0


def parse_conditions(given: Sequence[str], settings: Settings) -> dict[str, dict[str, Any]]:
    """A filter from NAME=VALUE, NAME!=VALUE, NAME>=VALUE and so on; values are read as the field's type says.

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


def _as_json(hit: Hit, row: DocumentRow) -> dict[str, object]:
    from runnel.search.records import Places

    places = Places(row.blocks)
    sentences = []
    for sentence in hit.sentences:
        page, headings = places.at(sentence.start)
        sentences.append(asdict(sentence) | {"after": _below(row, places, sentence), "page": page, "headings": headings})
    facts = {"id": hit.id, "rank": hit.rank, "score": hit.score, "title": row.title, "source": row.source}
    return facts | {"metadata": dict(row.metadata), "sentences": sentences}


def _below(row: DocumentRow, places: Places, sentence: Sentence) -> str:
    """The first sentence below a heading; "" if the sentence is none."""
    return row.text[sentence.end : end_of_text_below(row.text, sentence.start, sentence.end, places.kind_at)]


def _show(console: Console, hits: Sequence[Hit], rows: Mapping[str, DocumentRow]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from runnel.search.records import Places

    if not hits:
        console.print("nothing found", style="dim")
    for hit in hits:
        row = rows[hit.id]
        places = Places(row.blocks)
        head = Text(f"{hit.rank:>2}. ")
        head.append(one_line(row.title or hit.id), style="bold cyan")
        head.append(f"  {hit.score:.4f}", style="dim")
        console.print(head, soft_wrap=True)
        if row.title:
            console.print(Text("    " + one_line(hit.id), style="dim"), soft_wrap=True)
        for sentence in hit.sentences:
            page, headings = places.at(sentence.start)
            where = ", ".join([*([f"page {page:,}"] if page else []), *([" › ".join(headings)] if headings else [])])
            body = Text(normalize(sentence.text))
            body.append(f"  ({one_line(where) or f'characters {sentence.start}-{sentence.end}'})", style="dim italic")
            console.print(Padding(body, (0, 0, 0, 4)))
            if below := _below(row, places, sentence):
                console.print(Padding(Text(normalize(below), style="dim"), (0, 0, 0, 6)))
        console.print()
