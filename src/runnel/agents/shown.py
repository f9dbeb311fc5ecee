"""Answers as text, for agents that read no structured content.

Text of documents is between two lines that carry a random mark, so that no document can end its own quotation.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

from runnel.agents import results
from runnel.errors import counted
from runnel.records import Place, percent, unanswered

_MARK_BYTES = 4
_DIGITS = 16  # of a SHA-256: enough for `read`, which takes its beginning


def shown(answer: results.ToolResult | results.ServerStatus) -> str:
    """Return an answer as text."""
    mark = secrets.token_hex(_MARK_BYTES)
    if isinstance(answer, results.ServerStatus):
        return answer.model_dump_json(indent=2)
    said = unanswered(answer.answers) if isinstance(answer, results.Found | results.Searched) else ""
    lines = [*([said] if said else []), *_lines(answer, mark)]
    lines += [f"note: {_name(note)}" for note in answer.notes]
    if answer.next_cursor is not None:
        lines.append(f"continues with cursor {answer.next_cursor}")
    return "\n".join(lines)


def _lines(answer: results.ToolResult, mark: str) -> Iterator[str]:
    if isinstance(answer, results.Read):
        yield f"{_place(answer.place)}; the document has {answer.characters} characters and {answer.lines} lines"
        yield from _quotation(answer.place.text, mark)
    elif isinstance(answer, results.Searched):
        yield counted(answer.total, "document")
        for rank, document in enumerate(answer.documents, start=answer.first):
            yield f"{rank}. {_name(document.file)} {json.dumps(document.title)}"
            for sentence in document.sentences:
                yield from _passage(sentence, mark)
    elif isinstance(answer, results.Found):
        yield counted(answer.total, "sentence")
        for rank, sentence in enumerate(answer.sentences, start=answer.first):
            others = len(sentence.also) + sentence.also_omitted
            also = f", and {counted(others, 'more place')}" if others else ""
            chance = "" if sentence.answers is None else f", probability {percent(sentence.answers)}"
            yield f"{rank}. {_place(sentence)}{_cut(sentence)}{chance}{also}"
            yield from _quotation(f"{sentence.before}[answer {mark}]{sentence.text}[/answer {mark}]{sentence.after}", mark)
    elif isinstance(answer, results.VerifiedQuote):
        yield f"{answer.match}: {'' if answer.word_for_word else 'not '}word for word, similarity {answer.similarity}"
        for place in answer.places:
            yield f"{place.match}{' except for case' if place.case_differs else ''}"
            yield from _passage(place, mark)
            yield from (f"quote: {json.dumps(change.quote)}  document: {json.dumps(change.text)}" for change in place.changes)


def _passage(place: Place, mark: str) -> Iterator[str]:
    yield _place(place) + _cut(place)
    yield from _quotation(place.text, mark)


def _cut(place: Place) -> str:
    return "" if len(place.text) == place.end - place.start else f", here only its first {len(place.text)}"


def _quotation(text: str, mark: str) -> list[str]:
    return [f"[document text {mark}]", text, f"[end {mark}]"]


def _place(place: Place) -> str:
    """Return a place in one line. Headings are text of the document: quoted, and without line breaks."""
    row = "" if place.id is None else f", row {json.dumps(place.id)}"
    where = f", line {place.line}" if place.page is None else f", page {place.page}"
    under = f", under {json.dumps(' > '.join(place.headings))}" if place.headings else ""
    return f"{_name(place.file)}{row}{where}, characters {place.start}-{place.end}{under}, sha256 {place.sha256[:_DIGITS]}"


def _name(name: str) -> str:
    """Return the name of a file in one line: a name can have line breaks."""
    return name if name.isprintable() else json.dumps(name)
