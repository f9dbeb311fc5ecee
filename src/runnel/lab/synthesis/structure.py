"""Questions about documents from their structure alone (docs/data.md): what an author has put over,
before or after a text says what the text answers; and the rows of evidence made of them.

A long document is cut into parts, which are the documents of the rows, because each row holds its
document.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from runnel.files import digest
from runnel.lab.synthesis.sources import Source, check_language, refusal
from runnel.lab.synthesis.strategies import BOILERPLATE
from runnel.lab.training.decontaminate import Decontaminator
from runnel.records import trim
from runnel.text.documents.headings import is_heading
from runnel.text.sentences import split_paragraphs, split_sentences

Strategy = Literal["heading", "question", "definition", "list", "reference"]
Span = tuple[int, int]

_MOST = 6  # sentences of an answer: those nearest to the question
_WORDS = 5  # of a sentence in prose, at least
_TITLE_WORDS, _TITLE_CHARS = 12, 200
_QUESTION_WORDS = range(3, 26)
_TERM_WORDS = 6

_NUMBER = re.compile(
    r"(?:(?P<kind>section|article|part|chapter|clause|item|note|appendix|exhibit)\s+)?"
    r"(?P<number>\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Z]|[IVX]{1,5}|[a-z])[.):]|\d{1,3}(?:\.\d{1,3})*|(?<=\s)[A-Z])[\s\u2013\u2014-]+",
    re.IGNORECASE,
)
_MARK = re.compile(r"(?:#{1,6}|[-*+\u2022\u2023\u25e6|>])\s+")  # Markdown's headings, bullets
_MINOR = frozenset(
    "a an and as at by for from in into is of on or our the this to under we with you your".split()
)
# Words that begin a sentence after a heading on the same line.
_STARTERS = frozenset(
    "A After All An Any As At Because Before By During Each Except For From He How However If In It"
    " It's Its No None Please She Some Such The There These They This Those To Under Unless Upon We"
    " We're When Where Whether While With You You're Your Our".split()
)
_GENERIC = frozenset(
    "abstract acknowledgements appendix background conclusion conclusions contents definitions"
    " description discussion general index introduction methods miscellaneous more note notes other"
    " others overview preamble recitals references results see summary".split()
) | {"table of contents", "related links", "see also", "external links", "further reading"}
_ABBREVIATION = re.compile(r"(?:[A-Z]\.)+|[A-Z][a-z]{0,3}\.")
_DEFINITION = re.compile(
    r"(?P<quote>[\"\u201c'\u2018])?(?P<term>[^\s\"\u201c\u201d,;:()]+(?:\s[^\s\"\u201c\u201d,;:()]+){0,5}?)[\"\u201d'\u2019]?\s+"
    r"(?:\([^()]{1,40}\)\s+)?(?P<verb>shall mean|means|refers to|is defined as|are defined as|is an?|are)\s+(?P<rest>\S.*)",
    re.DOTALL,
)
_PRONOUNS = frozenset(
    "he i it its she such that there these they this those we what which who you".split()
)
_REFERENCE = re.compile(
    r",?\s*[(\[]?\b(?:(?:please\s+)?(?:see|refer to)|(?:as\s+)?(?:defined|described|discussed|set forth|provided|specified)\s+in"
    r"|pursuant\s+to|in\s+accordance\s+with|under)\s+(?:the\s+|our\s+|also\s+)*"
    r"(?:(?:section|article|part|chapter|clause|item|note|appendix|exhibit)\s+(?P<number>(?:\d+(?:\.\d+)*|[A-Z])\b)"
    r"|[\"\u201c'\u2018](?P<title>[^\"\u201c\u201d\u2019]{4,80})[\"\u201d'\u2019])"
    r"(?:\s+(?:above|below|of this \w+))?[)\]]?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Asked:
    """A question, and where its answer is in the document."""

    strategy: Strategy
    question: str
    source: Span  # the characters that the question was made from
    answer: Span  # of neighboring sentences


@dataclass(frozen=True)
class _Section:
    """A heading or a question, and the numbers of the sentences below it."""

    strategy: Strategy
    title: str
    number: str  # "4.2", without punctuation; "" if it has none
    source: Span
    below: range
    start: int  # of the first one


def ask(text: str, kind_at: Callable[[int], str | None]) -> list[Asked]:
    """Return the questions that the structure of a text asks, in its order.

    No two have the same words, the words of a question are in no answer (those of a definition are
    in their own), and `Asked.source` spans do not overlap. `kind_at` returns the kind of the block
    at a character, None if unknown.
    """
    sentences = _Sentences(text, kind_at)
    sections = list(_sections(sentences))
    rare = _compatible(
        [*_lists(sentences), *_definitions(sentences), *_references(sentences, sections)]
    )
    gone = [one.source for one in rare if one.strategy != "definition"]
    taken = [
        number
        for number, (start, end) in enumerate(sentences.spans)
        if any(start < b and a < end for a, b in gone)
    ]
    answers = [(one, _answer(sentences, one, taken)) for one in sections]
    below = [
        Asked(one.strategy, one.title, one.source, answer) for one, answer in answers if answer
    ]
    return sorted(_compatible([*rare, *below]), key=lambda one: one.source)


def cut(text: str, asked: Sequence[Asked]) -> tuple[str, Callable[[Span], Span]]:
    """Return a text without the words that became questions, and a function from spans of the text
    to spans of the result.

    Those words would be the best match for the question. Definitions stay: their question has only
    the term.
    """
    gone = sorted(one.source for one in asked if one.strategy != "definition")
    kept = text
    for start, end in reversed(gone):
        kept = kept[:start] + kept[end:]

    def place(span: Span) -> Span:
        shift = sum(end - start for start, end in gone if end <= span[0])  # no cut is inside a span
        return span[0] - shift, span[1] - shift

    return kept, place


class _Sentences:
    """The visible sentences of a text, without the whitespace at their ends."""

    def __init__(self, text: str, kind_at: Callable[[int], str | None]) -> None:
        self.text, self.kind_at = text, kind_at
        self.spans = [
            span
            for a, b in split_sentences(text).tolist()
            if (span := trim(text, a, b))[0] < span[1]
        ]
        paragraphs = {trim(text, a, b)[0] for a, b in split_paragraphs(text).tolist()}
        # of a paragraph or a block
        self.first = [start in paragraphs or self._is_item(start) for start, _ in self.spans]

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> str:
        return self.text[slice(*self.spans[number])]

    def is_heading(self, number: int) -> bool:
        return not self.opens_list(number) and is_heading(
            self.text, *self.spans[number], self.kind_at
        )

    def opens_list(self, number: int) -> bool:
        """Return whether a sentence ends with a colon before an item."""
        return self[number].endswith(":") and number + 1 < len(self) and self.is_item(number + 1)

    def is_item(self, number: int) -> bool:
        """Return whether a sentence begins an item of a list."""
        return self._is_item(self.spans[number][0])

    def is_prose(self, number: int) -> bool:
        """Return whether a sentence can be an answer: it has a few words and an end, and is not in
        code or a table.
        """
        words = self[number]
        return (
            self.kind_at(self.spans[number][0]) not in ("code", "row")
            and sum(map(str.isalpha, words)) > len(words) / 2
            and len(words.split()) >= _WORDS
            and (
                words.rstrip("\"')\u201d\u2019")[-1:] in (*".!;:,\u2026\u3002", "?")
                or self.is_item(number)
            )
        )

    def span(self, numbers: Sequence[int]) -> Span:
        return self.spans[numbers[0]][0], self.spans[numbers[-1]][1]

    def _is_item(self, start: int) -> bool:
        return self.kind_at(start) == "item" or bool(
            re.match(r"[-*+\u2022\u2023\u25e6]\s", self.text[start : start + 2])
        )


def _sections(sentences: _Sentences) -> Iterator[_Section]:
    """Yield headings and questions with what is below them, up to the next one."""
    # sentence, end of the title or question, strategy
    opened: list[tuple[int, int, Strategy, Span]] = []
    for number, (start, end) in enumerate(sentences.spans):
        words = sentences[number]
        if sentences.is_heading(number):
            opened.append((number + 1, end, "heading", (start, end)))
        elif words.endswith("?") and len(words.split()) in _QUESTION_WORDS:
            opened.append((number + 1, end, "question", (start, end)))
        elif sentences.first[number] and (
            size := _title_size(sentences.text[start : start + _TITLE_CHARS].partition("\n\n")[0])
        ):
            opened.append(
                (number + (start + size >= end), start + size, "heading", (start, start + size))
            )
    for place, (below, after, strategy, source) in enumerate(opened):
        stop = opened[place + 1][3][0] if place + 1 < len(opened) else len(sentences.text)
        last = bisect_left(sentences.spans, (stop, 0))
        label, title = _split_title(sentences.text[slice(*source)])
        begin = (
            trim(sentences.text, after, max(sentences.spans[below][1], after))[0]
            if below < len(sentences)
            else after
        )
        yield _Section(strategy, title, label, source, range(below, last), begin)


def _title_size(words: str) -> int:
    """Return the length of a heading at the start of a paragraph; 0 if there is none."""
    mark = _MARK.match(words)
    at = mark.end() if mark else 0
    number = _NUMBER.match(words, at)
    at = number.end() if number else at
    pieces = list(re.finditer(r"\S+", words[at:]))
    for count, piece in enumerate(pieces[: _TITLE_WORDS + 1]):
        following = pieces[count + 1][0] if count + 1 < len(pieces) else ""
        if count and piece[0] in _STARTERS and following[:1].islower():
            return _size(words, at, pieces, count)
        if not (
            piece[0][:1].isupper()
            or piece[0][:1].isdigit()
            or piece[0].lower() in _MINOR
            or piece[0] in "&-/\u2013"
        ):
            return 0
        ends = piece[0][-1] in ".:\u2014" and not _ABBREVIATION.fullmatch(piece[0])
        ends_line = (
            following[:1].isupper()
            and "\n" in words[at + piece.end() : at + pieces[count + 1].start()]
        )
        if following and (ends or ends_line):
            return _size(words, at, pieces, count + 1)
    return 0


def _size(words: str, at: int, pieces: list[re.Match[str]], count: int) -> int:
    """Return where a heading of `count` words ends, 0 if they are none: one word of a sentence is
    often capitalized.
    """
    title = words[at : at + pieces[count - 1].end()]
    plain = count == 1 and (len(title) < 5 or title[-1] not in ".:\u2014") and not title.isupper()
    return 0 if plain or title.split()[-1].lower() in _MINOR else at + pieces[count - 1].end()


def _split_title(title: str) -> tuple[str, str]:
    title = _MARK.sub("", " ".join(title.split()), count=1)
    number = _NUMBER.match(title)
    if number is not None and number.end() < len(title):
        title = title[number.end() :]
    return "" if number is None else number["number"].strip("().:"), title.strip(
        " .:*_#=~\u2013\u2014-"
    )


def _answer(sentences: _Sentences, section: _Section, taken: Sequence[int] = ()) -> Span | None:
    """Return the first sentences in prose below a heading, up to one that is taken."""
    prose = [
        number for number in section.below if sentences.is_prose(number) and number not in taken
    ]
    if not prose:
        return None
    stop = next((number for number in taken if number > prose[0]), len(sentences))
    chosen = [number for number in prose if number < min(stop, prose[0] + _MOST)]
    start, end = sentences.span(chosen)
    return max(start, section.start), end


def _definitions(sentences: _Sentences) -> Iterator[Asked]:
    for number, span in enumerate(sentences.spans):
        definitions = _DEFINITION.match(sentences[number]) if sentences.is_prose(number) else None
        if definitions is None:
            continue
        article = re.match(r"(?:The|An?)\s+", definitions["term"])
        words = definitions["term"][article.end() if article else 0 :].split()
        term = " ".join(words)
        explicit = (
            definitions["quote"] is not None
            or "mean" in definitions["verb"]
            or "defin" in definitions["verb"]
        )
        named = explicit or (
            definitions["verb"].startswith("is a")
            and (article is not None or words[0] not in _STARTERS)
        )
        if (
            named
            and 0 < len(words) <= _TERM_WORDS
            and not _PRONOUNS.intersection(map(str.lower, words))
        ):
            yield Asked(
                "definition",
                f"What is {term}?" if not explicit else f"What does {term} mean?",
                span,
                span,
            )


def _lists(sentences: _Sentences) -> Iterator[Asked]:
    for number in range(len(sentences) - 2):
        words = sentences[number]
        if not sentences.opens_list(number) or len(words.split()) not in _QUESTION_WORDS:
            continue
        items = [number + 1]
        while (
            len(items) < _MOST
            and items[-1] + 1 < len(sentences)
            and not sentences.is_heading(items[-1] + 1)
        ):
            if sentences.first[items[-1] + 1] and not sentences.is_item(items[-1] + 1):
                break
            items.append(items[-1] + 1)
        if len(items) > 1:
            question = re.sub(
                r"\s*\b(?:the following|as follows|these)\b", "", words[:-1], flags=re.IGNORECASE
            )
            yield Asked(
                "list", " ".join(question.split()), sentences.spans[number], sentences.span(items)
            )


def _references(sentences: _Sentences, sections: Sequence[_Section]) -> Iterator[Asked]:
    numbered = Counter(one.number.lower() for one in sections if one.number)
    titled = {one.title.lower(): one for one in sections if one.strategy == "heading"}
    by_number = {
        one.number.lower(): one
        for one in sections
        if one.number and numbered[one.number.lower()] == 1
    }
    for number, source in enumerate(sentences.spans):
        found = _REFERENCE.search(sentences[number]) if sentences.is_prose(number) else None
        if found is None:
            continue
        to = (
            by_number.get(found["number"].lower())
            if found["number"]
            else titled.get(found["title"].strip(" .,").lower())
        )
        question = " ".join(_REFERENCE.sub("", sentences[number]).split()).strip(" .,;:")
        if to is not None and number not in to.below and len(question.split()) in _QUESTION_WORDS:
            if answer := _answer(sentences, to):
                yield Asked("reference", question, source, answer)


def _compatible(found: Sequence[Asked]) -> list[Asked]:
    """Return the questions without those that are asked twice, say nothing, or need what an earlier
    one cuts out.
    """
    times = Counter(question.question.lower() for question in found)
    kept: list[Asked] = []
    for question in found:
        words = re.findall(r"[^\W\d_]{3,}", question.question.lower())
        if (
            not words
            or times[question.question.lower()] > 1
            or question.question.lower() in _GENERIC
        ):
            continue
        if not any(_clash(question, other) or _clash(other, question) for other in kept):
            kept.append(question)
    return kept


def _clash(one: Asked, other: Asked) -> bool:
    """Return whether the words that one question is made from are in what the other one needs."""
    if one.strategy == "definition" or one.source == other.source == other.answer:
        return False
    (start, end), needed = (
        one.source,
        [other.answer] if other.strategy == "definition" else [other.answer, other.source],
    )
    return any(start < b and a < end for a, b in needed)


PART_SENTENCES = 300  # of a part, at most: training looks at that many sentences at a time
PART_QUESTIONS = 20  # about a part, at most


@dataclass
class StructureRows:
    """One run over documents. The same documents, in the same order, and the same seed give the
    same rows.
    """

    guard: Decontaminator
    language: str | None = None
    seed: int = 0
    read: int = 0  # parts so far
    kept: Counter[str] = field(default_factory=Counter)  # rows by strategy
    rejected: Counter[str] = field(default_factory=Counter)  # parts and questions, by reason

    def __post_init__(self) -> None:
        if self.language is not None:
            check_language(self.language)

    def rows(self, sources: Iterable[Source], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows of evidence (docs/data.md), those of a document in its order, until there are
        `limit`.
        """
        for source in sources:
            spans = split_sentences(source.text)
            for sentences in (
                np.array_split(spans, -(-len(spans) // PART_SENTENCES)) if len(spans) else []
            ):
                for row in self._part(source, int(sentences[0, 0]), int(sentences[-1, 1])):
                    if limit is not None and self.kept.total() >= limit:
                        return
                    self.kept[row["strategy"]] += 1
                    yield row

    def _part(self, source: Source, start: int, end: int) -> Iterator[dict[str, Any]]:
        text = source.text[start:end]
        self.read += 1
        reason = refusal(text, self.guard, self.language)
        if reason is not None:
            self.rejected[reason] += 1
            return
        asked = self._choose(text, ask(text, lambda offset: source.places.kind_at(start + offset)))
        if not asked:
            self.rejected["parts whose structure asks nothing"] += 1
        document, place = cut(text, asked)
        for one in asked:
            answer = list(place(one.answer))
            name = f"structure-{digest(source.name, document, one.question)}"
            row: dict[str, Any] = {
                "id": name,
                "question": one.question,
                "document": document,
                "evidence": [answer],
            }
            row |= {
                "strategy": one.strategy,
                "places": [answer],
                "source": source.name,
                "source_start": start,
            }
            for key, span in (("source_question", one.source), ("source_evidence", one.answer)):
                row[key] = [start + offset for offset in span]
            yield row

    def _choose(self, text: str, asked: list[Asked]) -> list[Asked]:
        usable = [
            one for one in asked if not BOILERPLATE.search(one.question + text[slice(*one.answer)])
        ]
        if boilerplate := len(asked) - len(usable):
            self.rejected["questions about boilerplate of a publisher"] += boilerplate
        if (beyond := len(usable) - PART_QUESTIONS) <= 0:
            return usable
        self.rejected[f"questions beyond {PART_QUESTIONS} about a part"] += beyond
        rng = np.random.default_rng([self.seed, int(digest(text), 16)])
        return [
            usable[number]
            for number in sorted(rng.choice(len(usable), PART_QUESTIONS, replace=False).tolist())
        ]
