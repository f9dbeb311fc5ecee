"""Three strategies for writing a question about a subsequence, with the units that answer it (docs/data.md).

A place is a range of neighboring units of a subsequence, which the paper calls a chunk.

Source: paper E, sections 4 and 4.1, with the filters of its authors' code, and with the box of units that it shows around a
place, which begins or ends near it: the paper says "200 surrounding sentences".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from runnel.generation.endpoint import Reply
from runnel.lab.synthesis import prompts
from runnel.lab.synthesis.prompts import Kind, Rejected, fill, read_object, read_reply
from runnel.lab.synthesis.sources import Subsequence
from runnel.text.dialogue import Message

Strategy = Literal["link", "pair", "chunk"]
PLACE_UNITS = {"sentence": 20, "clauses": 5}  # of a place: the paper's text, and its code
AROUND = 200  # units that a language model reads to find connections, with the place ...
NEAR = 10  # ... that has so many of them on one side, and all others on the other
APART = 6  # units from one place of a pair to the other, at least: nearer ones share a paragraph
LINKED = 10  # units from a place to a connected unit, at least
BESIDE = 3  # units on each side of a connected unit that may be evidence too

BOILERPLATE = re.compile(r"gutenberg|copyright", re.IGNORECASE)
_TOO_FEW, _NOT_SHOWN = "subsequences with too few units", "replies with numbers of sentences that were not shown"
_ANSWERED: dict[str, Kind] = {"question": "text", "answer": "text", "sentences": "numbers"}

Ask = Callable[[list[Message]], Reply]
Encode = Callable[[list[str]], np.ndarray]  # unit vectors (n, d)


@dataclass(frozen=True)
class Draft:
    """A question with what answers it. A single place has no `connection`, and no `distance`."""

    question: str
    answer: str
    units: tuple[int, ...]  # evidence, ascending
    places: tuple[range, ...]  # in the order of the document
    connection: str | None = None
    distance: int | None = None  # units from one place to the other, 1 if they are neighbors


def write_chunk(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask) -> Draft:
    """Write a question about one place of `size` units."""
    place = _draw_place(text, size, rng)
    found = read_reply(ask(fill(prompts.CHUNK, sentences=_show(text, place))), **_ANSWERED)
    return _draft(found, (place,))


def write_pair(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask, encode: Encode) -> Draft:
    """Write a question about a random place and the one with the nearest vector."""
    tiles = [range(start, start + size) for start in range(0, len(text.spans) - size + 1, size)]
    tiles = [tile for tile in tiles if not BOILERPLATE.search(_slice(text, tile))]
    partners = {tile: [other for other in tiles if _distance(tile, other) >= APART] for tile in tiles}
    place = _draw([tile for tile in tiles if partners[tile]], rng)
    others = partners[place]
    vectors = encode([_slice(text, tile) for tile in (place, *others)])
    first, second = sorted((place, others[int(np.argmax(vectors[1:] @ vectors[0]))]), key=lambda tile: tile.start)
    reply = ask(fill(prompts.PAIR, first=_show(text, first), second=_show(text, second)))
    found = read_reply(reply, connection="text", **_ANSWERED)
    return _draft(found, (first, second), distance=_distance(first, second))


def write_link(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask) -> Draft:
    """Write a question about a random place and the furthest one that is connected with it."""
    place = _draw_place(text, size, rng)
    around = _around(place, len(text.spans), rng)
    if max(place.start - around.start, around.stop - place.stop) < LINKED:
        raise Rejected(_TOO_FEW)
    reply = ask(fill(prompts.CONNECTIONS, place=_show(text, place), around=_show(text, around)))
    number, connection = _furthest(read_reply(reply, connections="objects")["connections"], place, around)
    beside = range(max(number - BESIDE, 0), min(number + BESIDE + 1, len(text.spans)))
    _refuse_boilerplate(connection, _slice(text, beside))
    found = read_reply(ask(fill(prompts.FROM_CONNECTION, connection=connection)), question="text")
    places = tuple(sorted((place, beside), key=lambda one: one.start))
    shown = "\n".join(_show(text, one) for one in places)
    reply = ask(fill(prompts.LABELS, question=found["question"], sentences=shown))
    found |= read_reply(reply, answer="text", sentences="numbers")
    return _draft(found | {"connection": connection}, places, distance=_distance(place, range(number, number + 1)))


def _draft(found: dict[str, Any], places: tuple[range, ...], distance: int | None = None) -> Draft:
    """Return what a language model has written; each place must have evidence."""
    connection = found.get("connection")
    _refuse_boilerplate(found["question"], found["answer"], connection or "")
    units = set(found["sentences"])
    chosen = [units.intersection(place) for place in places]
    if units.difference(*chosen) or not all(chosen):
        one_place = "questions with evidence in one place only" if units else "questions without evidence"
        raise Rejected(_NOT_SHOWN if units.difference(*chosen) else one_place)
    return Draft(found["question"], found["answer"], tuple(sorted(units)), places, connection, distance)


def _draw_place(text: Subsequence, size: int, rng: np.random.Generator) -> range:
    place = _draw([range(start, start + size) for start in range(len(text.spans) - size + 1)], rng)
    _refuse_boilerplate(_slice(text, place))
    return place


def _draw(places: Sequence[range], rng: np.random.Generator) -> range:
    if not places:
        raise Rejected(_TOO_FEW)
    return places[int(rng.integers(len(places)))]


def _around(place: range, count: int, rng: np.random.Generator) -> range:
    """Return the larger of two boxes of `AROUND` units in a subsequence: from `NEAR` before the place, or to as many after it."""
    first, last = max(place.start - NEAR, 0), min(place.stop + NEAR, count)
    after, before = range(first, min(place.start - NEAR + AROUND, count)), range(max(place.stop + NEAR - AROUND, 0), last)
    if len(after) == len(before):
        return (before, after)[int(rng.integers(2))]
    return max(before, after, key=len)


def _furthest(connections: Iterable[object], place: range, around: range) -> tuple[int, str]:
    """Return the connected unit that is furthest from the place, and the connection."""
    links = [read_object(one, connection="text", sentence="number") for one in connections]
    distances = [_distance(place, range(one["sentence"], one["sentence"] + 1)) for one in links]
    shown = all(one["sentence"] in around for one in links)
    if not shown or max(distances, default=0) < LINKED:
        near = f"places whose connections are all nearer than {LINKED} units" if links else "places without connections"
        raise Rejected(near if shown else _NOT_SHOWN)
    best = links[distances.index(max(distances))]
    return best["sentence"], best["connection"]


def _distance(a: range, b: range) -> int:
    """Return the number of steps between the nearest units of two places; 0 or less if they overlap."""
    return max(b.start - a.stop, a.start - b.stop) + 1


def _refuse_boilerplate(*texts: str) -> None:
    if any(BOILERPLATE.search(text) for text in texts):
        raise Rejected("places or questions about boilerplate of a publisher")


def _slice(text: Subsequence, units: range) -> str:
    return text.text[slice(*text.span(units))]


def _show(text: Subsequence, units: range) -> str:
    return "\n".join(f"[{number}] {' '.join(text.unit(number).split())}" for number in units)
