"""Verify a quote in documents: is it there word for word, where, and if not, which words differ?"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runnel.records import Place
from runnel.search.finding import FileDocument, locate
from runnel.text.quotes import Change, verify_quote

_ORDER = ("absent", "changed", "normalized", "exact")


@dataclass(frozen=True)
class QuotedPlace(Place):
    """A place of a quote; `match`, `case_differs` and `changes` as in `QuotePlace`."""

    match: Literal["exact", "normalized", "changed"]
    case_differs: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Verified:
    """What `verify` found."""

    # the best of all documents; None: there was no document
    match: Literal["exact", "normalized", "changed", "absent"] | None
    # the share of the letters of the quote's words that the nearest stretch has in the same order
    similarity: float
    # all with the words of the quote; if there is none, the nearest stretch, if any is near
    places: tuple[QuotedPlace, ...]
    files: int  # the number of documents searched, rows counted one by one

    @property
    def word_for_word(self) -> bool:
        """Whether a document has all words of the quote, in order and without
        others between them.
        """
        return self.match in ("exact", "normalized")

    def as_json(self) -> dict[str, object]:
        verdict = {
            "match": self.match,
            "word_for_word": self.word_for_word,
            "similarity": self.similarity,
        }
        if self.match is None:
            verdict = dict.fromkeys(verdict)
        return verdict | {"files": self.files, "places": [place.as_json() for place in self.places]}


def verify(quote: str, documents: Iterable[FileDocument]) -> Verified:
    """Look for a quote in documents, one after another; raises as `verify_quote`."""
    best = verify_quote(quote, "")  # "absent", to compare with; also checks the quote
    places: list[QuotedPlace] = []
    files = 0
    for source in documents:
        files += 1
        verified = verify_quote(quote, source.document.text)
        if not verified.word_for_word and verified.similarity <= best.similarity:
            continue
        located = locate(
            source.file, source.document, [(quoted.start, quoted.end) for quoted in verified.places]
        )
        here = [
            QuotedPlace(
                **vars(place),
                match=quoted.match,
                case_differs=quoted.case_differs,
                changes=quoted.changes,
            )
            for quoted, place in zip(verified.places, located, strict=True)
        ]
        # all places with the words of the quote; else only the places in the nearest document until
        # now
        places = places + here if best.word_for_word else here
        best = max(
            best, verified, key=lambda verdict: (_ORDER.index(verdict.match), verdict.similarity)
        )
    return Verified(best.match if files else None, best.similarity, tuple(places), files)
