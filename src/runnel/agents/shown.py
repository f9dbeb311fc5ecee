"""Answers as text, for agents that read no structured content.

Text of documents is between two lines that carry a random mark, so that no document can end its own quotation.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

from runnel.agents import results
from runnel.errors import counted
from runnel.records import percent, unanswered

_MARK_BYTES = 4
_DIGITS = 16  # of a SHA-256: enough for `read`, which takes its beginning


def shown(answer: results.Answer | results.ServerStatus) -> str:
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


def _lines(answer: results.Answer, mark: str) -> Iterator[str]:
    if isinstance(answer, results.Read):
        yield f"{_place(answer)}; the document has {answer.characters} characters and {answer.lines} lines"
        yield from _quotation(answer.text, mark)
    elif isinstance(answer, results.Searched):
        yield counted(answer.total, "document")
        for hit in answer.documents:
            yield f"{hit.rank}. {_name(hit.file)} {json.dumps(hit.title)}"
            for passage in hit.sentences:
                yield from _passage(passage, mark)
    elif isinstance(answer, results.Found):
        yield counted(answer.total, "sentence")
        for one in answer.sentences:
            also = f", and {counted(one.other_places, 'more place')}" if one.other_places else ""
            chance = "" if one.probability is None else f", probability {percent(one.probability)}"
            yield f"{one.rank}. {_place(one)}{_cut(one)}{chance}{also}"
            yield from _quotation(f"{one.before}[answer {mark}]{one.text}[/answer {mark}]{one.after}", mark)
    elif isinstance(answer, results.VerifiedQuote):
        yield f"{answer.match}: {'' if answer.word_for_word else 'not '}word for word, similarity {answer.similarity}"
        for place in answer.places:
            yield f"{place.match}{' except for case' if place.case_differs else ''}"
            yield from _passage(place, mark)
            yield from (f"quote: {json.dumps(one.quote)}  document: {json.dumps(one.text)}" for one in place.changes)


def _passage(passage: results.Passage, mark: str) -> Iterator[str]:
    yield _place(passage) + _cut(passage)
    yield from _quotation(passage.text, mark)


def _cut(passage: results.Passage) -> str:
    return "" if passage.complete else f", here only its first {len(passage.text)}"


def _quotation(text: str, mark: str) -> list[str]:
    return [f"[document text {mark}]", text, f"[end {mark}]"]


def _place(anchor: results.Anchor) -> str:
    """Return a place in one line. Headings are text of the document: quoted, and without line breaks."""
    row = "" if anchor.row is None else f", row {json.dumps(anchor.row)}"
    where = f", line {anchor.line}" if anchor.page is None else f", page {anchor.page}"
    under = f", under {json.dumps(' > '.join(anchor.headings))}" if anchor.headings else ""
    return f"{_name(anchor.file)}{row}{where}, characters {anchor.start}-{anchor.end}{under}, sha256 {anchor.sha256[:_DIGITS]}"


def _name(name: str) -> str:
    """Return the name of a file in one line: a name can have line breaks."""
    return name if name.isprintable() else json.dumps(name)
