"""Three strategies for writing a question about a subsequence, with the units that answer it.

Source: paper E, sections 4 and 4.1, with the filters of its authors' code: evidence in both places, places far apart, only the
furthest connection, one question per subsequence, no boilerplate of publishers; and with the box of units that they show around a
place, which begins or ends near it: the paper says "200 surrounding sentences".

- chunk: about neighboring units.
- pair: about two places whose vectors are near.
- link: about two places that a language model finds connected; it reads the units before or after the first.

A place is a range of neighboring units of a subsequence, which the paper calls a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runnel.generation.endpoint import Reply
from runnel.generation.synthesis.prompts import (
    Rejected,
    ask_chunk,
    ask_connections,
    ask_labels,
    ask_pair,
    ask_question,
    number_sentences,
    read_object,
    read_reply,
)
from runnel.generation.synthesis.sources import Subsequence
from runnel.text.dialogue import Message

Strategy = Literal["link", "pair", "chunk"]
PLACE_UNITS = {"sentence": 20, "clauses": 5}  # of a place: the paper's text, and its code
AROUND = 200  # units that a language model reads to find connections, with the place ...
NEAR = 10  # ... that has so many of them on one side, and all others on the other
APART = 6  # units from one place of a pair to the other, at least: nearer ones share a paragraph
LINKED = 10  # units from a place to a connected unit, at least
BESIDE = 3  # units on each side of a connected unit that may be evidence too

BOILERPLATE = re.compile(r"gutenberg|copyright", re.IGNORECASE)

Ask = Callable[[list[Message]], Reply]
Encode = Callable[[list[str]], np.ndarray]  # unit vectors (n, d)


@dataclass(frozen=True)
class Draft:
    """A question with what answers it.

    Attributes:
        connection: of the two places, in words; None if there is one place.
        units: evidence, ascending.
        places: in the order of the document.
        distance: units from one place to the other, 1 if they are neighbors; None if there is one place.
    """

    question: str
    answer: str
    connection: str | None
    units: tuple[int, ...]
    places: tuple[range, ...]
    distance: int | None


def write_chunk(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask) -> Draft:
    """Write a question about one place of `size` units."""
    place = _draw_place(text, size, rng)
    reply = ask(ask_chunk(_show(text, place)))
    found = read_reply(reply, question="text", answer="text", sentences="numbers")
    _refuse_boilerplate([found["question"], found["answer"]])
    return Draft(found["question"], found["answer"], None, _evidence(found["sentences"], [place]), (place,), None)


def write_pair(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask, encode: Encode) -> Draft:
    """Write a question about a random place and the one with the nearest vector. Raises as `write_chunk`."""
    tiles = [range(start, start + size) for start in range(0, len(text.spans) - size + 1, size)]
    tiles = [tile for tile in tiles if not BOILERPLATE.search(_slice(text, tile))]
    partners = {tile: [other for other in tiles if _distance(tile, other) >= APART] for tile in tiles}
    tiles = [tile for tile in tiles if partners[tile]]
    if not tiles:
        raise Rejected("subsequences with too few units")
    first = tiles[int(rng.integers(len(tiles)))]
    others = partners[first]
    vectors = encode([_slice(text, tile) for tile in (first, *others)])
    places = tuple(sorted((first, others[int(np.argmax(vectors[1:] @ vectors[0]))]), key=lambda place: place.start))
    reply = ask(ask_pair(*(_show(text, place) for place in places)))
    found = read_reply(reply, connection="text", question="text", answer="text", sentences="numbers")
    _refuse_boilerplate([found["connection"], found["question"], found["answer"]])
    units = _evidence(found["sentences"], places)
    return Draft(found["question"], found["answer"], found["connection"], units, places, _distance(*places))


def write_link(text: Subsequence, size: int, rng: np.random.Generator, ask: Ask) -> Draft:
    """Write a question about a random place and the furthest one that is connected with it. Raises as `write_chunk`."""
    place = _draw_place(text, size, rng)
    around = _around(place, len(text.spans), rng)
    if max(place.start - around.start, around.stop - place.stop) < LINKED:
        raise Rejected("subsequences with too few units")
    reply = ask(ask_connections(_show(text, place), _show(text, around)))
    number, connection = _furthest(read_reply(reply, connections="objects")["connections"], place, around)
    beside = range(max(number - BESIDE, 0), min(number + BESIDE + 1, len(text.spans)))
    _refuse_boilerplate([connection, _slice(text, beside)])
    question = read_reply(ask(ask_question(connection)), question="text")["question"]
    places = tuple(sorted((place, beside), key=lambda one: one.start))
    reply = ask(ask_labels(question, "\n".join(_show(text, one) for one in places)))
    found = read_reply(reply, answer="text", sentences="numbers")
    _refuse_boilerplate([question, found["answer"]])
    units = _evidence(found["sentences"], places)
    return Draft(question, found["answer"], connection, units, places, _distance(place, range(number, number + 1)))


def _draw_place(text: Subsequence, size: int, rng: np.random.Generator) -> range:
    if len(text.spans) < size:
        raise Rejected("subsequences with too few units")
    start = int(rng.integers(len(text.spans) - size + 1))
    place = range(start, start + size)
    _refuse_boilerplate([_slice(text, place)])
    return place


def _around(place: range, count: int, rng: np.random.Generator) -> range:
    """Return the box of `AROUND` units that begins `NEAR` units before the place, or the one that ends as many after it.

    A box ends with the subsequence; the one with more units is used, or either if they have equally many.
    """
    first, last = max(place.start - NEAR, 0), min(place.stop + NEAR, count)
    after, before = range(first, min(place.start - NEAR + AROUND, count)), range(max(place.stop + NEAR - AROUND, 0), last)
    if len(after) == len(before):
        return (before, after)[int(rng.integers(2))]
    return max(before, after, key=len)


def _furthest(connections: Iterable[object], place: range, around: range) -> tuple[int, str]:
    """Return the connected unit that is furthest from the place, and the connection."""
    found = [read_object(one, connection="text", sentence="number") for one in connections]
    if not found:
        raise Rejected("places without connections")
    if any(one["sentence"] not in around for one in found):
        raise Rejected("replies with numbers of sentences that were not shown")
    best = max(found, key=lambda one: _distance(place, range(one["sentence"], one["sentence"] + 1)))
    if _distance(place, range(best["sentence"], best["sentence"] + 1)) < LINKED:
        raise Rejected(f"places whose connections are all nearer than {LINKED} units")
    return best["sentence"], best["connection"]


def _evidence(numbers: list[int], places: Iterable[range]) -> tuple[int, ...]:
    """Return the chosen units; each place must have one."""
    units = set(numbers)
    chosen = [units.intersection(place) for place in places]
    if units.difference(*chosen):
        raise Rejected("replies with numbers of sentences that were not shown")
    if not units:
        raise Rejected("questions without evidence")
    if not all(chosen):
        raise Rejected("questions with evidence in one place only")
    return tuple(sorted(units))


def _distance(a: range, b: range) -> int:
    """Return the number of steps between the nearest units of two places; 0 or less if they overlap."""
    return max(b.start - a.stop, a.start - b.stop) + 1


def _refuse_boilerplate(texts: Iterable[str]) -> None:
    if any(BOILERPLATE.search(text) for text in texts):
        raise Rejected("places or questions about boilerplate of a publisher")


def _slice(text: Subsequence, units: range) -> str:
    return text.text[slice(*text.span(units))]


def _show(text: Subsequence, units: range) -> str:
    return number_sentences((number, text.unit(number)) for number in units)
