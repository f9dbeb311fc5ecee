"""Questions about documents from their structure alone (docs/data.md), and rows of evidence made of
them. Authors themselves say what a text answers:

    heading      "4.2 Fees"                             the prose below it answers
    question     "Can I drink the water?"               the same
    definition   "A levee is a wall of earth."          the sentence answers "What is levee?"
    list         "Bring one of the following:"          the items of the list answer

The words that became a question (`Asked.source`) are cut out of the document, because they would be
its best match; a definition's stay.

A long document is cut into parts, which are the documents of the rows, because each row holds its
document.

In the order of this file: patterns; `ask`, which finds the questions of a text, and `cut`, which
removes them; `_Sentences`, the text's; what asks: `_sections` (headings and questions),
`_definitions` and `_lists`; `_compatible`, the questions that can be asked together;
`StructureRows`, the rows of evidence of all documents.

Spans are [start, end) in characters of the text. Sentences have numbers in the order of the text.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from runnel.files import digest
from runnel.lab.synthesis.sources import Source, refusal
from runnel.lab.synthesis.strategies import BOILERPLATE
from runnel.lab.training.decontaminate import Decontaminator
from runnel.records import trim
from runnel.text.documents.headings import is_heading
from runnel.text.sentences import split_paragraphs, split_sentences

StructureStrategy = Literal["heading", "question", "definition", "list"]
Span = tuple[int, int]

_MOST_SENTENCES = 6  # of an answer: those nearest to the question
_LEAST_WORDS = 5  # of a sentence in prose
_MOST_TITLE_WORDS = 12
_MOST_TITLE_CHARS = 200
_QUESTION_WORDS = range(3, 26)  # of a question, or of a sentence that opens a list
_MOST_TERM_WORDS = 6  # of a term that is defined

# before a title: "4.2 ", "Section 3. ", "A. ", "(iv) "
_NUMBER = re.compile(
    r"(?:(?:section|article|part|chapter|clause|item|note|appendix|exhibit)\s+)?"
    r"(?:\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Z]|[IVX]{1,5}|[a-z])[.):]"
    r"|\d{1,3}(?:\.\d{1,3})*"
    r"|(?<=\s)[A-Z])[\s\u2013\u2014-]+",
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
# titles that ask nothing
_GENERIC = frozenset(
    "abstract acknowledgements appendix background conclusion conclusions contents definitions"
    " description discussion general index introduction methods miscellaneous more note notes other"
    " others overview preamble recitals references results see summary".split()
) | {"table of contents", "related links", "see also", "external links", "further reading"}
_ABBREVIATION = re.compile(r"(?:[A-Z]\.)+|[A-Z][a-z]{0,3}\.")  # "U.S.", "Dr."
# "Tenant" means the person named below; A levee (or dike) is a wall of earth
_DEFINITION = re.compile(
    r"(?P<quote>[\"\u201c'\u2018])?"
    r"(?P<term>[^\s\"\u201c\u201d,;:()]+(?:\s[^\s\"\u201c\u201d,;:()]+){0,5}?)"
    r"[\"\u201d'\u2019]?\s+(?:\([^()]{1,40}\)\s+)?"
    r"(?P<verb>shall mean|means|refers to|is defined as|are defined as|is an?|are)"
    r"\s+(?P<rest>\S.*)",
    re.DOTALL,
)
_LIST_WORDS = re.compile(r"\s*\b(?:the following|as follows|these)\b", re.IGNORECASE)
_PRONOUNS = frozenset(
    "he i it its she such that there these they this those we what which who you".split()
)


@dataclass(frozen=True)
class Asked:
    """A question, and where its answer is in the document."""

    strategy: StructureStrategy
    question: str
    source: Span  # the characters of the document that the question was made from
    answer: Span  # the span of the answering sentences, which are neighbors


@dataclass(frozen=True)
class _Section:
    """A heading or a question, and what is below it, up to the next one."""

    strategy: StructureStrategy
    title: str
    source: Span  # of the heading or question
    below: range  # the numbers of the sentences
    start: int  # where the text below begins: inside the first sentence if the heading begins it


def ask(text: str, kind_at: Callable[[int], str | None]) -> list[Asked]:
    """Return the questions that the structure of a text asks, in its order.

    No two have the same words, the words of a question are in no answer (those of a definition are
    in their own), and `Asked.source` spans do not overlap. `kind_at` returns the kind of the block
    at a character (`DocumentText.places().kind_at`: "item", "code", "row" and others), None if
    unknown.
    """
    sentences = _Sentences(text, kind_at)
    # lists and definitions are chosen first, then the headings and questions that leave them whole
    preferred = _compatible([*_lists(sentences), *_definitions(sentences)])
    removed = [asked.source for asked in preferred if asked.strategy != "definition"]
    # sentences that `cut` removes, so that no answer may contain them
    taken = [
        number
        for number, (start, end) in enumerate(sentences.spans)
        if any(start < last and first < end for first, last in removed)
    ]
    below = [
        Asked(section.strategy, section.title, section.source, answer)
        for section in _sections(sentences)
        if (answer := _answer(sentences, section, taken))
    ]
    return sorted(_compatible([*preferred, *below]), key=lambda asked: asked.source)


def cut(text: str, asked: Sequence[Asked]) -> tuple[str, Callable[[Span], Span]]:
    """Return a text without the words that became questions, and a function from spans of the text
    to spans of the result.

    Those words would be the best match for the question. Definitions stay: their question has only
    the term.
    """
    removed = sorted(question.source for question in asked if question.strategy != "definition")
    rest = text
    for start, end in reversed(removed):
        rest = rest[:start] + rest[end:]

    def place(span: Span) -> Span:
        # no cut is inside a span
        shift = sum(end - start for start, end in removed if end <= span[0])
        return span[0] - shift, span[1] - shift

    return rest, place


class _Sentences:
    """The visible sentences of a text, without the whitespace at their ends."""

    def __init__(self, text: str, kind_at: Callable[[int], str | None]) -> None:
        self.text = text
        self.kind_at = kind_at
        self.spans = [
            span
            for a, b in split_sentences(text).tolist()
            if (span := trim(text, a, b))[0] < span[1]
        ]
        paragraphs = {trim(text, a, b)[0] for a, b in split_paragraphs(text).tolist()}
        # for each sentence, whether it is the first of a paragraph or of a list's item
        self.begins = [
            start in paragraphs or self.is_item(number)
            for number, (start, _) in enumerate(self.spans)
        ]

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
        start = self.spans[number][0]
        return self.kind_at(start) == "item" or bool(
            re.match(r"[-*+\u2022\u2023\u25e6]\s", self.text[start : start + 2])
        )

    def is_prose(self, number: int) -> bool:
        """Return whether a sentence can be an answer: it has a few words and an end, and is not in
        code or a table.
        """
        words = self[number]
        return (
            self.kind_at(self.spans[number][0]) not in ("code", "row")
            and sum(map(str.isalpha, words)) > len(words) / 2
            and len(words.split()) >= _LEAST_WORDS
            and (
                words.rstrip("\"')\u201d\u2019")[-1:] in tuple(".!?;:,\u2026\u3002")
                or self.is_item(number)
            )
        )

    def span(self, numbers: Sequence[int]) -> Span:
        return self.spans[numbers[0]][0], self.spans[numbers[-1]][1]


def _sections(sentences: _Sentences) -> Iterator[_Section]:
    """Yield headings and questions with what is below them, up to the next one."""
    # of each heading or question: the strategy, its span, the number of the first sentence below
    opened: list[tuple[StructureStrategy, Span, int]] = []
    for number, (start, end) in enumerate(sentences.spans):
        words = sentences[number]
        if sentences.is_heading(number):
            opened.append(("heading", (start, end), number + 1))
        elif words.endswith("?") and len(words.split()) in _QUESTION_WORDS:
            opened.append(("question", (start, end), number + 1))
        elif sentences.begins[number] and (
            size := _title_size(
                sentences.text[start : start + _MOST_TITLE_CHARS].partition("\n\n")[0]
            )
        ):
            # the heading may only begin the sentence: then the rest of the sentence is below it
            opened.append(
                ("heading", (start, start + size), number if start + size < end else number + 1)
            )
    # Each ends where the next one begins, the last one with the text. (Without any, there is one
    # stop more, the text's.)
    stops = [source[0] for _, source, _ in opened[1:]] + [len(sentences.text)]
    for (strategy, source, first), stop in zip(opened, stops, strict=False):
        if first < len(sentences):
            title = _without_number(sentences.text[slice(*source)])
            below = range(first, bisect_left(sentences.spans, (stop, 0)))
            # the text below, without whitespace before it
            start, _ = trim(sentences.text, source[1], max(sentences.spans[first][1], source[1]))
            yield _Section(strategy, title, source, below, start)


def _title_size(words: str) -> int:
    """Return the length of a heading at the start of a paragraph; 0 if there is none.

    Its words are capitalized ("Fees and Costs"). It ends at a colon, a full stop or a dash ("Fees.
    You pay"), at a line end before a capital, or before a word that begins a sentence ("Fees and
    Costs We charge").
    """
    mark = _MARK.match(words)
    at = mark.end() if mark else 0
    number = _NUMBER.match(words, at)
    at = number.end() if number else at
    pieces = list(re.compile(r"\S+").finditer(words, at))
    for count, piece in enumerate(pieces[: _MOST_TITLE_WORDS + 1]):
        following = pieces[count + 1][0] if count + 1 < len(pieces) else ""
        if count and piece[0] in _STARTERS and following[:1].islower():
            return _checked_size(words, at, pieces[:count])
        if not (
            piece[0][:1].isupper()
            or piece[0][:1].isdigit()
            or piece[0].lower() in _MINOR
            or piece[0] in "&-/\u2013"
        ):
            return 0
        ends = piece[0][-1] in ".:\u2014" and not _ABBREVIATION.fullmatch(piece[0])
        ends_line = (
            following[:1].isupper() and "\n" in words[piece.end() : pieces[count + 1].start()]
        )
        if following and (ends or ends_line):
            return _checked_size(words, at, pieces[: count + 1])
    return 0


def _checked_size(words: str, at: int, pieces: list[re.Match[str]]) -> int:
    """Return the length of a heading with these words after its number, which ends at `at`; 0 if
    they are no heading: one word of a sentence is often capitalized.
    """
    title = words[at : pieces[-1].end()]
    plain = (
        len(pieces) == 1 and (len(title) < 5 or title[-1] not in ".:\u2014") and not title.isupper()
    )
    return 0 if plain or title.split()[-1].lower() in _MINOR else pieces[-1].end()


def _without_number(title: str) -> str:
    """Return a title without its number and the marks around it."""
    title = _MARK.sub("", " ".join(title.split()), count=1)
    number = _NUMBER.match(title)
    if number is not None and number.end() < len(title):
        title = title[number.end() :]
    return title.strip(" .:*_#=~\u2013\u2014-")


def _answer(sentences: _Sentences, section: _Section, taken: Sequence[int]) -> Span | None:
    """Return the first sentences in prose below a heading, up to one that is taken (by a list's
    question); None if there are none.
    """
    prose = [
        number for number in section.below if sentences.is_prose(number) and number not in taken
    ]
    if not prose:
        return None
    stop = next((number for number in taken if number > prose[0]), len(sentences))
    chosen = [number for number in prose if number < min(stop, prose[0] + _MOST_SENTENCES)]
    start, end = sentences.span(chosen)
    return max(start, section.start), end


def _definitions(sentences: _Sentences) -> Iterator[Asked]:
    """Yield questions about terms, which are answered by the sentences that define them."""
    for number, span in enumerate(sentences.spans):
        definitions = _DEFINITION.match(sentences[number]) if sentences.is_prose(number) else None
        if definitions is None:
            continue
        article = re.match(r"(?:The|An?)\s+", definitions["term"])
        words = definitions["term"][article.end() if article else 0 :].split()
        term = " ".join(words)
        verb = definitions["verb"]
        explicit = definitions["quote"] is not None or "mean" in verb or "defin" in verb
        named = explicit or (
            verb.startswith("is a") and (article is not None or words[0] not in _STARTERS)
        )
        personal = _PRONOUNS.intersection(map(str.lower, words))
        if named and 0 < len(words) <= _MOST_TERM_WORDS and not personal:
            question = f"What does {term} mean?" if explicit else f"What is {term}?"
            yield Asked("definition", question, span, span)


def _lists(sentences: _Sentences) -> Iterator[Asked]:
    """Yield sentences that end with a colon above a list: the items answer them."""
    for number in range(len(sentences) - 2):
        words = sentences[number]
        if not sentences.opens_list(number) or len(words.split()) not in _QUESTION_WORDS:
            continue
        items = [number + 1]
        for following in range(number + 2, min(number + 1 + _MOST_SENTENCES, len(sentences))):
            begins_other = sentences.begins[following] and not sentences.is_item(following)
            if begins_other or sentences.is_heading(following):
                break
            items.append(following)
        if len(items) > 1:
            question = " ".join(_LIST_WORDS.sub("", words[:-1]).split())
            yield Asked("list", question, sentences.spans[number], sentences.span(items))


def _compatible(questions: Sequence[Asked]) -> list[Asked]:
    """Return the questions without those that are asked twice, say nothing, or need what an earlier
    one cuts out.
    """
    times = Counter(asked.question.lower() for asked in questions)
    compatible: list[Asked] = []
    for asked in questions:
        words = asked.question.lower()
        says = words not in _GENERIC and re.search(r"[^\W\d_]{3}", words)
        clashes = (_clash(asked, other) or _clash(other, asked) for other in compatible)
        if times[words] == 1 and says and not any(clashes):
            compatible.append(asked)
    return compatible


def _clash(question: Asked, other: Asked) -> bool:
    """Return whether `cut` removes for a question words that another question or its answer needs.
    A definition has nothing removed, and needs only its answer.
    """
    if question.strategy == "definition":
        return False
    start, end = question.source
    needed = [other.answer] if other.strategy == "definition" else [other.answer, other.source]
    return any(start < last and first < end for first, last in needed)


PART_SENTENCES = 300  # the most sentences of a part: training looks at as many at a time
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

    def rows(self, sources: Iterable[Source], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows of evidence (docs/data.md), those of a document in its order, until there are
        `limit`.
        """
        for source in sources:
            spans = split_sentences(source.text)
            count = math.ceil(len(spans) / PART_SENTENCES)
            for sentences in np.array_split(spans, count) if count else []:
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
        for question in asked:
            answer = list(place(question.answer))
            yield {
                "id": f"structure-{digest(source.name, document, question.question)}",
                "question": question.question,
                "document": document,
                "evidence": [answer],
                "strategy": question.strategy,
                "places": [answer],
                "source": source.name,
                "source_start": start,
                "source_question": [start + offset for offset in question.source],
                "source_evidence": [start + offset for offset in question.answer],
            }

    def _choose(self, text: str, asked: list[Asked]) -> list[Asked]:
        usable = [
            question
            for question in asked
            if not BOILERPLATE.search(question.question + text[slice(*question.answer)])
        ]
        if boilerplate := len(asked) - len(usable):
            self.rejected["questions about boilerplate of a publisher"] += boilerplate
        if (beyond := len(usable) - PART_QUESTIONS) <= 0:
            return usable
        self.rejected[f"questions beyond {PART_QUESTIONS} about a part"] += beyond
        rng = np.random.default_rng([self.seed, int(digest(text), 16)])
        drawn = rng.choice(len(usable), PART_QUESTIONS, replace=False)
        return [usable[number] for number in sorted(drawn.tolist())]
