"""What the tools do and return: plain functions that block, without the protocol. Agents read these
docstrings and field texts.

A result has structured content, and for agents that read none the same as text (`shown`). All texts
are verbatim text of documents. In `shown` they, and all other words of documents, are between two
lines that carry a random mark, so that no document can end its own quotation. All of them count
when an answer is limited, once.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from runnel import __version__
from runnel.agents.documents import INDEXED, AgentDocuments, AgentSettings, Models
from runnel.errors import InputError, counted, describe
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.records import AnsweringSentence, Hit, Place, highest, percent, unanswered
from runnel.request import Progress, TokenCount
from runnel.search.finding import find, locate
from runnel.search.verifying import QuotedPlace, verify
from runnel.text.documents.document import DocumentText
from runnel.text.documents.ranges import By, choose_row, short_name, span_of

_LABEL_CHARS = 600  # of a title or note
_HEADINGS = 8  # the most of a place
_ALSO = 3  # the most other places of a sentence
_NOTES = 8  # the most of an answer
_DIGITS = 12  # the least of a SHA-256 that identify a document
_CURSOR = re.compile(r"(\d{1,12})-(\d{1,12})-([0-9a-f]{12})", re.ASCII)
_MARK_BYTES = 4
_SHOWN_DIGITS = 16  # of a SHA-256 in text: enough for `read`, which takes its beginning

File = Annotated[
    str,
    Field(
        description=(
            "Path below the allowed folders, relative to the first, or a name that search returned"
            " (index:...)."
        )
    ),
]
Query = Annotated[str, Field(min_length=1, description="A question, or words to look for.")]
Cursor = Annotated[str | None, Field(description="next_cursor of the last answer, to continue it.")]


class ToolResult(BaseModel):
    """What a tool returns. A `text` shorter than `end - start` is cut: read the
    rest by characters.
    """

    notes: list[str] = Field(
        [],
        description="Warnings about the file; why the index is not up to date, or not shown whole.",
    )
    next_cursor: str | None = Field(
        None,
        description=(
            "If not null, the answer continues: call again with the same arguments and this cursor."
        ),
    )


class ToolList(ToolResult):
    """Results in order; `total` counts all of them, on all pages."""

    total: int
    first: int = Field(1, description="Rank of the first result of this page, from 1.")


Answers = Annotated[
    float | None,
    Field(
        description=(
            "Probability that there is an answer at all: below 0.15, say that there is none. Null:"
            " not known."
        )
    ),
]


@dataclass(frozen=True)
class ListedSentence(AnsweringSentence):
    """A sentence that answers the question, with the text around it. `answers`: the probability;
    null if the model only ranks.
    """


class Found(ToolList):
    """Sentences of a file, best first."""

    answers: Answers = None
    sentences: list[ListedSentence]


class IndexedDocument(BaseModel):
    """A document of the index with its best sentences, best first."""

    file: str = Field(
        description="Name for find, read and verify: the document as it was when it was indexed."
    )
    source: str = Field(description="The file that was indexed, if any.")
    title: str
    sentences: list[ListedSentence]


class Searched(ToolList):
    """Documents of the index, best first."""

    answers: Answers = None
    documents: list[IndexedDocument]


class Read(ToolResult):
    """A stretch of a document, and the size of the whole document."""

    place: Place
    characters: int
    lines: int
    pages: int | None


@dataclass(frozen=True)
class ListedQuote(QuotedPlace):
    """A place of the quote."""

    changes_omitted: int = 0


class VerifiedQuote(ToolList):
    """Whether the file has the quote. exact: the same characters; normalized: the same words in
    another typography; changed: the nearest stretch, with the words that differ; absent: nothing
    near.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float = Field(description="Share of the quote's words in the nearest stretch.")
    places: list[ListedQuote]


class IndexStatus(BaseModel):
    """The index that search uses."""

    place: str
    documents: int
    model: str


class ServerStatus(BaseModel):
    """The server's settings and state."""

    version: str
    roots: list[str]
    index: IndexStatus | None
    model: str
    model_loaded: bool
    max_characters: int


T = TypeVar("T", ListedSentence, IndexedDocument, ListedQuote)
P = TypeVar("P", bound=Place)


class Tools:
    """The tools of one server. All methods may be called from several threads; `progress` may raise
    to stop a call.
    """

    def __init__(self, settings: AgentSettings, models: Models | None = None) -> None:
        self.settings = settings
        self._models = models or Models(settings)
        self._documents = AgentDocuments(settings, self._models.store)

    def search(
        self,
        query: Query,
        top_k: Annotated[int, Field(ge=1, le=100, description="Documents to return.")] = 5,
        sentences: Annotated[
            int, Field(ge=0, le=20, description="Sentences of each document.")
        ] = 3,
        cursor: Cursor = None,
        progress: Progress | None = None,
    ) -> Searched:
        """Search the index for documents, by meaning and words: when you do not know which file has
        the answer.

        Returns documents, best first, each with its best sentences. Continue with find or read on
        one of them.
        """
        notes: list[str] = []
        count = TokenCount(progress)
        with self._models.index(notes, count.part()) as index:
            asked = top_k
            while True:  # documents of files outside of the allowed folders are left out
                hits = index.search(query, asked, sentences=sentences, progress=count.part())
                shown = list(filter(None, map(self._shown, hits)))
                if len(shown) >= top_k or len(hits) < asked:
                    break
                asked *= 2
        if len(shown) < len(hits):
            notes.append("documents of files outside of the allowed folders are not shown")
        documents = [
            self._fit(partial(_document, self._documents.indexed_name(hit.id), hit))
            for hit in shown[:top_k]
        ]
        answers = highest(hit.answers for hit in shown[:top_k])
        page, fields = self._page(documents, cursor, notes)
        return Searched(answers=answers, documents=page, **fields)

    def _shown(self, hit: Hit) -> Hit | None:
        """Return a document of an allowed folder; in place of another its first copy that is in
        one, None if there is none.
        """
        if self._documents.shows(hit.source):
            return hit
        copy = next((place for place in hit.also if self._documents.shows(place.file)), None)
        if copy is None:
            return None
        sentences = tuple(
            replace(best, **vars(copy), before="", after="") for best in hit.sentences[:1]
        )
        name = copy.file if copy.id is None else f"{copy.file}#{copy.id}"
        return replace(hit, id=name, source=copy.file, title="", sentences=sentences, also=())

    def find(
        self,
        query: Query,
        file: File,
        top_k: Annotated[int, Field(ge=1, le=100, description="Sentences to return.")] = 5,
        context: Annotated[
            int, Field(ge=0, le=5, description="Sentences before and after each one.")
        ] = 1,
        cursor: Cursor = None,
        progress: Progress | None = None,
    ) -> Found:
        """Find the sentences of one file that answer a question: when you know the file, and it is
        too long to read whole.

        Reads text, Markdown, HTML, PDF, Word, EPUB, and rows of jsonl and csv, of any length. The
        first question about a file reads all of it; with the default model, later ones do not.
        """
        notes: list[str] = []

        def remember(document: DocumentText) -> SentenceVectors | None:
            retriever = self._models.retriever()
            return (
                next(retriever.remember([document], progress=progress))
                if retriever.remembers
                else None
            )

        findings = find(
            self._models.retriever(),
            query,
            self._documents.read(file, notes, remember),
            top_k=top_k,
            context=context,
            progress=progress,
        )
        sentences = [self._fit(partial(_sentence, sentence)) for sentence in findings.sentences]
        page, fields = self._page(sentences, cursor, notes)
        return Found(answers=findings.answers, sentences=page, **fields)

    def read(
        self,
        file: File,
        by: Annotated[By, Field(description="The unit of start and end.")] = "line",
        start: Annotated[
            int | None,
            Field(ge=0, description="First line or page, from 1; or first character, from 0."),
        ] = None,
        end: Annotated[
            int | None,
            Field(ge=0, description="Last line or page; or the character after the last one."),
        ] = None,
        row: Annotated[str | None, Field(description="Id of a row of jsonl, csv or tsv.")] = None,
        sha256: Annotated[
            str | None,
            Field(description="Fail if the document has another SHA-256; 12 digits are enough."),
        ] = None,
        cursor: Cursor = None,
    ) -> Read:
        """Read the exact text of a document by lines, pages or characters: to see more around a
        place, or to check one again.

        Without start and end, the whole document, in as many answers as it needs.
        """
        notes: list[str] = []
        documents = iter(self._documents.read(file, notes))
        first_source = list(islice(documents, 1))
        sources = chain(first_source, documents)
        document = choose_row((source.document for source in sources), file, row)
        if sha256 is not None and (
            len(sha256) < _DIGITS or not document.sha256.startswith(sha256.lower())
        ):
            raise InputError(
                f"{file} has changed: its text has the SHA-256 {document.sha256}; expected {sha256}"
            )
        first, stop = span_of(document, file, by, start, end)
        if cursor is not None:
            first, stop = _continued(cursor, document.sha256[:_DIGITS], len(document.text))
        notes, left = self._noted(notes)
        (uncut,) = locate(first_source[0].file, document, [(first, stop)])
        place = _bounded(uncut, self.settings.max_characters // 4)
        cut = _cut(document.text, first, stop, left - _size(replace(place, text="")))
        line = document.text.count("\n", 0, first) + 1
        return Read(
            place=replace(place, text=document.text[first:cut], end=cut, line=line),
            characters=len(document.text),
            lines=document.text.count("\n") + 1,
            pages=document.pages,
            notes=notes,
            next_cursor=None if cut == stop else f"{cut}-{stop}-{document.sha256[:_DIGITS]}",
        )

    def verify(
        self,
        quote: Annotated[
            str, Field(min_length=1, description="The words, as you would quote them.")
        ],
        file: File,
        cursor: Cursor = None,
    ) -> VerifiedQuote:
        """Check a quotation before you use it: is it in the file word for word, where, and if not,
        which words differ?
        """
        notes: list[str] = []
        verified = verify(quote, self._documents.read(file, notes))
        if verified.match is None:
            raise InputError(f"{file} has no text to verify a quote in")
        quotes = [self._fit(partial(_quote, place)) for place in verified.places]
        page, fields = self._page(quotes, cursor, notes)
        return VerifiedQuote(
            match=verified.match,
            word_for_word=verified.word_for_word,
            similarity=round(verified.similarity, 3),
            places=page,
            **fields,
        )

    def status(self) -> ServerStatus:
        """Return the folders whose files can be read, the index, the model and the size of an
        answer.
        """
        index = None
        if self.settings.index is not None:
            with self._models.store() as store:
                index = IndexStatus(
                    place=self.settings.index,
                    documents=store.last_commit().documents,
                    model=store.settings.model,
                )
        return ServerStatus(
            version=__version__,
            roots=[str(root) for root in self.settings.roots],
            index=index,
            model=self.settings.model,
            model_loaded=self._models.loaded,
            max_characters=self.settings.max_characters,
        )

    def _fit(self, make: Callable[[int], T]) -> T:
        """Return an item whose texts are cut so far that it fits into one answer."""
        most = self.settings.max_characters // 4
        while _size(item := make(most)) > self.settings.max_characters and most > 1:
            most //= 2
        return item

    def _noted(self, notes: list[str]) -> tuple[list[str], int]:
        """Return notes that fit into a quarter of an answer, and how many characters are left for
        documents.
        """
        most = self.settings.max_characters
        shown = [_short(note, most // 4 // _NOTES) for note in notes[:_NOTES]]
        if len(notes) > len(shown):
            shown.append(
                f"{len(notes) - len(shown):,} more notes; `runnel read` and `runnel index`"
                " print all"
            )
        return shown, most - sum(map(len, shown))

    def _page(
        self, items: Sequence[T], cursor: str | None, notes: list[str]
    ) -> tuple[list[T], dict[str, Any]]:
        """Return the items from the cursor on that fit into one answer, at least one, and the
        fields of a `ToolList`.
        """
        notes, left = self._noted(notes)
        fingerprint = hashlib.sha256("\n".join(map(_identity, items)).encode()).hexdigest()[:12]
        first = 0 if cursor is None else _continued(cursor, fingerprint, len(items))[0]
        stop = first
        while stop < len(items) and (stop == first or left >= _size(items[stop])):
            left -= _size(items[stop])
            stop += 1
        more = f"{stop}-{len(items)}-{fingerprint}" if stop < len(items) else None
        return list(items[first:stop]), {
            "total": len(items),
            "first": first + 1,
            "next_cursor": more,
            "notes": notes,
        }


def _identity(item: T) -> str:
    places = item.sentences if isinstance(item, IndexedDocument) else [item]
    return f"{item.file} {[(place.id, place.start, place.end, place.sha256) for place in places]}"


def _size(item: Place | IndexedDocument) -> int:
    if isinstance(item, IndexedDocument):
        return len(item.file) + len(item.source) + len(item.title) + sum(map(_size, item.sentences))
    size = sum(map(len, (item.id or "", item.text, item.table_row or "", *item.headings)))
    if item.file.startswith(INDEXED):  # else it is the agent's own path
        size += len(item.file)
    if isinstance(item, ListedSentence):
        size += len(item.before) + len(item.after) + sum(map(_size, item.also))
    if isinstance(item, ListedQuote):
        size += sum(len(change.quote) + len(change.text) for change in item.changes)
    return size


def _bounded(place: P, most: int) -> P:
    """Return a place with a short id, which `read` takes, and with a text and headings of at most
    `most` characters each.
    """
    id = None if place.id is None else short_name(place.id)
    headings = tuple(_short(title, most // _HEADINGS) for title in place.headings[-_HEADINGS:])
    row = None if place.table_row is None else place.table_row[:most]
    return replace(place, id=id, text=place.text[:most], table_row=row, headings=headings)


def _document(name: str, hit: Hit, most: int) -> IndexedDocument:
    sentences = [
        _sentence(replace(sentence, file=name, id=None), most) for sentence in hit.sentences
    ]
    return IndexedDocument(
        file=name, source=hit.source, title=_short(hit.title, most), sentences=sentences
    )


def _sentence(sentence: AnsweringSentence, most: int) -> ListedSentence:
    also = tuple(_bounded(place, most // 4) for place in sentence.also[:_ALSO])
    around = {
        "before": sentence.before[-(most // 2) :],
        "after": sentence.after[: most // 2],
        "also": also,
        "also_omitted": sentence.also_omitted + len(sentence.also) - len(also),
    }
    return ListedSentence(**vars(_bounded(sentence, most)) | around)


def _quote(quoted: QuotedPlace, most: int) -> ListedQuote:
    sizes = accumulate(len(change.quote) + len(change.text) for change in quoted.changes)
    shown = sum(size <= most for size in sizes)
    fields = vars(_bounded(quoted, most)) | {"changes": quoted.changes[:shown]}
    return ListedQuote(**fields, changes_omitted=len(quoted.changes) - shown)


def _short(text: str, most: int) -> str:
    most = max(1, min(most, _LABEL_CHARS))
    return text if len(text) <= most else text[: most - 1] + "…"


def _continued(cursor: str, fingerprint: str, size: int) -> tuple[int, int]:
    """Return the first place of the next part of an answer and the end of the answer, both counted
    in its items or characters; `size` is the number of all of them.
    """
    match = _CURSOR.fullmatch(cursor)
    if match is None or match[3] != fingerprint or not int(match[1]) <= int(match[2]) <= size:
        raise InputError(
            f"the cursor {cursor!r} does not continue this answer, or its file has changed; call"
            " again without it"
        )
    return int(match[1]), int(match[2])


def _cut(text: str, first: int, stop: int, most: int) -> int:
    """Return where the answer ends: after a line, if one ends in the last quarter of what fits."""
    if stop - first <= most:
        return stop
    line_end = text.rfind("\n", first + most - most // 4, first + most)
    return line_end + 1 if line_end >= 0 else first + most


def refusal(error: Exception, most: int) -> str:
    """Return an error as text. It may quote documents and names of files, so it is marked and cut
    as they are.
    """
    reason = describe(error)
    cut = f"; here the first {most:,} of {len(reason):,} characters" if len(reason) > most else ""
    return "\n".join(
        [
            f"the reason may quote documents{cut}:",
            *_quotation(reason[:most], secrets.token_hex(_MARK_BYTES)),
        ]
    )


def shown(answer: ToolResult | ServerStatus) -> str:
    """Return an answer as text."""
    mark = secrets.token_hex(_MARK_BYTES)
    if isinstance(answer, ServerStatus):
        return answer.model_dump_json(indent=2)
    warning = unanswered(answer.answers) if isinstance(answer, Found | Searched) else ""
    lines = [*([warning] if warning else []), *_lines(answer, mark)]
    # Notes may have names of files, and words of what their parsers say.
    lines += _quotation("\n".join(f"note: {_name(note)}" for note in answer.notes), mark)
    if answer.next_cursor is not None:
        lines.append(f"continues with cursor {answer.next_cursor}")
    return "\n".join(lines)


def _lines(answer: ToolResult, mark: str) -> Iterator[str]:
    if isinstance(answer, Read):
        yield (
            f"{_place(answer.place)}; the document has {answer.characters} characters and"
            f" {answer.lines} lines"
        )
        yield from _labels(answer.place, mark)
        yield from _quotation(answer.place.text, mark)
    elif isinstance(answer, Searched):
        yield counted(answer.total, "document")
        for rank, document in enumerate(answer.documents, start=answer.first):
            digests = [f" sha256 {s.sha256[:_SHOWN_DIGITS]}" for s in document.sentences[:1]]
            yield "".join([f"{rank}.", *digests])
            yield from _quotation(f"{_name(document.file)} {json.dumps(document.title)}", mark)
            for sentence in document.sentences:
                yield f"- {_where(sentence)}{_found(sentence)}"
                yield from _labels(replace(sentence, file=""), mark)
                yield from _marked(sentence, mark)
    elif isinstance(answer, Found):
        yield counted(answer.total, "sentence")
        for rank, sentence in enumerate(answer.sentences, start=answer.first):
            yield f"{rank}. {_place(sentence)}{_found(sentence)}"
            yield from _labels(sentence, mark)
            yield from _marked(sentence, mark)
    elif isinstance(answer, VerifiedQuote):
        yield (
            f"{answer.match}: {'' if answer.word_for_word else 'not '}word for word, similarity"
            f" {answer.similarity}"
        )
        for place in answer.places:
            yield f"{place.match}{' except for case' if place.case_differs else ''}"
            yield from _passage(place, mark)
            changes = [
                f"quote: {json.dumps(change.quote)}  document: {json.dumps(change.text)}"
                for change in place.changes
            ]
            yield from _quotation("\n".join(changes), mark)


def _found(sentence: ListedSentence) -> str:
    """Return whether a sentence is cut, its probability and the number of its other places."""
    others = len(sentence.also) + sentence.also_omitted
    also = f", and {counted(others, 'more place')}" if others else ""
    chance = "" if sentence.answers is None else f", probability {percent(sentence.answers)}"
    return f"{_cut_note(sentence)}{chance}{also}"


def _marked(sentence: ListedSentence, mark: str) -> list[str]:
    """Return a sentence, marked, in the text around it."""
    words = sentence.table_row or sentence.text
    marked = f"{sentence.before}[answer {mark}]{words}[/answer {mark}]{sentence.after}"
    return _quotation(marked, mark)


def _passage(place: Place, mark: str) -> Iterator[str]:
    yield _place(place) + _cut_note(place)
    yield from _labels(place, mark)
    yield from _quotation(place.table_row or place.text, mark)


def _cut_note(place: Place) -> str:
    return (
        ""
        if len(place.text) == place.end - place.start
        else f", here only its first {len(place.text)}"
    )


def _quotation(text: str, mark: str) -> list[str]:
    return [f"[document text {mark}]", text, f"[end {mark}]"] if text else []


def _place(place: Place) -> str:
    """Return a place in one line, without words of documents: the path of a file is the agent's
    own.
    """
    name = "" if place.file.startswith(INDEXED) else f"{_name(place.file)}, "
    return f"{name}{_where(place)}, sha256 {place.sha256[:_SHOWN_DIGITS]}"


def _where(place: Place) -> str:
    where = f"line {place.line}" if place.page is None else f"page {place.page}"
    return f"{where}, characters {place.start}-{place.end}"


def _labels(place: Place, mark: str) -> list[str]:
    """Return the words of documents that belong to a place, quoted and without line breaks: row,
    headings, name in an index.
    """
    name = [json.dumps(place.file)] if place.file.startswith(INDEXED) else []
    row = [] if place.id is None else [f"row {json.dumps(place.id)}"]
    under = [f"under {json.dumps(' > '.join(place.headings))}"] if place.headings else []
    return _quotation(", ".join([*name, *row, *under]), mark)


def _name(name: str) -> str:
    """Return the name of a file in one line: a name can have line breaks."""
    return name if name.isprintable() else json.dumps(name)
