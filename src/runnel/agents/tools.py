"""The tools for agents: plain functions that block, without the protocol. In this order: the
classes of their results; `Tools`, with a method for each tool; helpers that keep an answer within
its size; `shown` and the functions below it, which write a result as text.

Agents read the docstrings of the tools and the descriptions of arguments, and keep all of them in
their context, so both are short.

An answer is sent as text (`shown`) or, where the agent asks for it, as structure: never as both.
`max_characters` bounds the answer as it is sent, in JSON. In text all words of documents are
between two lines that carry a random mark, so that no document can end its own quotation; in a list
of places each line has one place, except lines of code, so that no document can add a place.
"""

import hashlib
import json
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby, islice
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from runnel import __version__
from runnel.agents.documents import INDEXED, AgentDocuments, AgentSettings, Models, one_line
from runnel.errors import InputError, counted, describe
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.records import AnsweringSentence, Hit, Place, highest, normalize, percent, unanswered
from runnel.request import Progress, TokenCount
from runnel.search.filters import parse_conditions
from runnel.search.finding import find, locate
from runnel.search.verifying import QuotedPlace, verify
from runnel.text.documents.document import DocumentText
from runnel.text.documents.ranges import By, choose_row, short_name, span_of

_LABEL_CHARS = 600  # the most characters of a title or note in an answer
_TITLE_CHARS = 60  # the most characters of a title or heading inside text
_HEADINGS = 8  # the most of a place
_HEADINGS_SHOWN = 2  # the most of a place in text
_ALSO = 3  # the most other places of a sentence
_NOTES = 8  # the most of an answer
_DIGITS = 12  # the least of a SHA-256 that identify a document, and those in text
_CURSOR = re.compile(r"(\d{1,12})-(\d{1,12})-([0-9a-f]{12})", re.ASCII)
_MARK_BYTES = 4
_MESSAGE_CHARS = 250  # characters of the JSON-RPC message around an answer

Files = Annotated[
    str, Field(description="File, folder or glob; with index: before it, of the index.")
]
Query = Annotated[str, Field(min_length=1, description="A question, or words.")]
Conditions = Annotated[
    list[str] | None, Field(description="Filter of the index's fields, e.g. year>=2020.")
]
Cursor = Annotated[str | None, Field(description="Of the answer to continue.")]


class ToolResult(BaseModel):
    """What a tool returns. A `text` shorter than `end - start` is cut: read the rest by characters.

    notes: warnings about files; why the index is not up to date, or not shown whole.
    next_cursor: if not null, the answer continues: the same call with this cursor.
    """

    notes: list[str] = []
    next_cursor: str | None = None


class ToolList(ToolResult):
    """Results in order; `total` counts all of them, on all pages, and `first` is the rank of the
    first one of this page, from 1.
    """

    total: int = 0
    first: int = 1


class Found(ToolList):
    """Sentences, best first, each with the probability that it answers (null if the model only
    ranks), and the text around it.

    answers: the probability that there is an answer at all; below 0.15, say that there is none;
    null: not known.
    """

    answers: float | None = None
    sentences: list[AnsweringSentence]


class IndexedDocument(BaseModel):
    """A document of the index with its best sentences, best first. `file`: its name for the tools,
    as it was when it was indexed; `source`: the file that was indexed, if any.
    """

    file: str
    source: str
    title: str
    sentences: list[AnsweringSentence]


class Searched(ToolList):
    """Documents of the index, best first; `total` counts their sentences. `answers` as of
    `Found`.
    """

    answers: float | None = None
    documents: list[IndexedDocument]


class ListedFiles(ToolList):
    """Names of files and documents that can be read."""

    files: list[str]


class Read(ToolResult):
    """A stretch of a document, and the size of the whole document."""

    place: Place
    characters: int
    lines: int
    pages: int | None


class ReadPlaces(ToolList):
    """Several stretches of documents, in the order of the call."""

    places: list[Place]


class Stretch(BaseModel):
    """As read."""  # for agents, whose tool `read` explains the same arguments

    model_config = ConfigDict(extra="forbid")

    file: str
    by: By = "line"
    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=0)
    row: str | None = None


@dataclass(frozen=True)
class ListedQuote(QuotedPlace):
    """A place of the quote."""

    changes_omitted: int = 0


class VerifiedQuote(ToolList):
    """Whether the file has the quote. exact: the same characters; normalized: the same words in
    another typography; changed: the nearest stretch, with the words that differ; absent: nothing
    near. `similarity`: the share of the quote's words in the nearest stretch.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float
    places: list[ListedQuote]


Status = dict[str, object]  # the status of the server
Page = TypeVar("Page", bound=ToolList)
P = TypeVar("P", bound=Place)
T = TypeVar("T")


class Tools:
    """The tools of one server. All methods may be called from several threads; `progress` may raise
    to stop a call.
    """

    def __init__(self, settings: AgentSettings, models: Models | None = None) -> None:
        self.settings = settings
        self._models = models or Models(settings)
        self._documents = AgentDocuments(settings, self._models.store)
        self._most = settings.max_characters

    def search(
        self,
        query: Query,
        top_k: Annotated[int, Field(ge=1, le=100, description="Documents.")] = 10,
        sentences: Annotated[
            int, Field(ge=0, le=100, description="In all; of each document its best at least.")
        ] = 16,
        file: Annotated[str | None, Field(description="Only of this folder or glob.")] = None,
        where: Conditions = None,
        cursor: Cursor = None,
        structured: bool = False,
        progress: Progress | None = None,
    ) -> Searched:
        """Search the index by meaning and words: when you do not know which file has the answer.

        Returns documents and sentences, best first. Continue with find or read.
        """
        notes: list[str] = []
        hits = self._hits(query, top_k, sentences, file, where, notes, progress)
        listed = [
            partial(_listed, self._documents.name_of_indexed(hit.id), hit, sentence)
            for hit, sentence in _best(hits, sentences)
        ]
        answers = highest(hit.answers for hit in hits)
        return self._page(
            listed,
            cursor,
            notes,
            structured,
            lambda items: Searched(answers=answers, documents=_by_document(items)),
        )

    def _hits(
        self,
        query: str,
        top_k: int,
        sentences: int,
        file: str | None,
        where: Sequence[str] | None,
        notes: list[str],
        progress: Progress | None,
    ) -> list[Hit]:
        """Return the best documents of the index, of a folder or glob of it if `file` is given."""
        within = (file or "").removeprefix(INDEXED)
        root = self._documents.target_of(within) if within else None
        count = TokenCount(progress)
        hidden: list[str] = []  # files outside of the allowed folders

        def is_wanted(source: str) -> bool:
            if not self._documents.shows(source):
                hidden.append(source)
                return False
            return root is None or root.covers(Path(source))

        with self._models.index(notes, count.part()) as index:
            hits = index.search(
                query,
                top_k,
                where=parse_conditions(where or [], index.store.settings.fields),
                of_file=is_wanted,
                sentences=sentences,
                progress=count.part(),
            )
        if root is not None and not hits:
            notes.append(
                f"no document of the index in {short_name(within)!r} was found; files with path"
                f" {INDEXED!r} lists the index"
            )
        if hidden:
            notes.append("documents of files outside of the allowed folders are not shown")
        return hits

    def find(
        self,
        query: Query,
        file: Files,
        top_k: Annotated[int, Field(ge=1, le=100, description="Sentences.")] = 8,
        context: Annotated[int, Field(ge=0, le=5, description="Sentences around each.")] = 1,
        where: Conditions = None,
        cursor: Cursor = None,
        structured: bool = False,
        progress: Progress | None = None,
    ) -> Found:
        """Find the sentences that answer a question, of a file or of a folder's or glob's files."""
        notes: list[str] = []
        indexed = file.startswith(INDEXED)
        if where and not indexed:
            raise InputError(
                f"where selects documents of the index, and file is {file!r}; give {INDEXED!r} for"
                f" all of them, or {INDEXED + file!r}"
            )
        if indexed and (where or self._documents.is_group(file)):
            hits = self._hits(query, top_k, min(top_k, 20), file, where, notes, progress)
            answers = highest(hit.answers for hit in hits)
            sentences = (
                replace(sentence, file=self._documents.name_of_indexed(hit.id), id=None)
                for hit in hits
                for sentence in hit.sentences
            )
            best = sorted(sentences, key=lambda sentence: -sentence.score)[:top_k]
        else:
            findings = find(
                self._models.retriever(),
                query,
                self._documents.read(file, notes, partial(self._remember, progress), several=True),
                top_k=top_k,
                context=context,
                progress=progress,
            )
            answers, best = findings.answers, findings.sentences
        return self._page(
            [partial(_sentence, sentence) for sentence in best],
            cursor,
            notes,
            structured,
            lambda items: Found(answers=answers, sentences=items),
        )

    def _remember(
        self, progress: Progress | None, document: DocumentText
    ) -> SentenceVectors | None:
        retriever = self._models.retriever()
        if not retriever.remembers:
            return None
        return next(retriever.remember([document], progress=progress))

    def files(
        self,
        path: Annotated[str, Field(description="Folder or glob; index: lists the index.")] = ".",
        cursor: Cursor = None,
        structured: bool = False,
    ) -> ListedFiles:
        """List what can be read: the files of a folder, or the documents of the index."""
        notes: list[str] = []
        if path.startswith(INDEXED):
            folder = path.removeprefix(INDEXED)
            root = self._documents.target_of(folder) if folder else None
            names = [
                self._documents.name_of_indexed(id)
                for id, content in sorted(self._models.store().content_hashes().items())
                if self._documents.shows(content.source)
                and (root is None or root.covers(Path(content.source)))
            ]
        else:
            names = self._documents.files(path, notes)
        return self._page(
            [partial(_short, name) for name in names],
            cursor,
            notes,
            structured,
            lambda items: ListedFiles(files=items),
        )

    def read(
        self,
        file: Annotated[
            str, Field(description="Path below the allowed folders, or a name from search.")
        ],
        by: Annotated[By, Field(description="Unit of start and end.")] = "line",
        start: Annotated[
            int | None, Field(ge=0, description="First line or page, from 1; character, from 0.")
        ] = None,
        end: Annotated[
            int | None, Field(ge=0, description="Last line or page; character after the last.")
        ] = None,
        row: Annotated[str | None, Field(description="Id in jsonl, csv or tsv.")] = None,
        sha256: Annotated[
            str | None,
            Field(
                min_length=_DIGITS, description="Fail if the document's digest begins otherwise."
            ),
        ] = None,
        cursor: Cursor = None,
        structured: bool = False,
    ) -> Read:
        """Read the exact text of a document by lines, pages or characters, or all of it."""
        notes: list[str] = []
        name, document = self._document(file, row, notes)
        if not document.sha256.startswith((sha256 or "").lower()):
            raise InputError(
                f"{file} has changed: its text has the SHA-256 {document.sha256}; expected {sha256}"
            )
        first, stop = span_of(document, file, by, start, end)
        if cursor is not None:
            first, stop = _continued(cursor, document.sha256[:_DIGITS], len(document.text))
        (uncut,) = locate(name, document, [(first, stop)])
        place = _bounded(uncut, self._most // 8)
        line = document.text.count("\n", 0, first) + 1
        lines = document.text.count("\n") + 1

        def answer(cut: int) -> Read:
            return Read(
                place=replace(place, text=document.text[first:cut], end=cut, line=line),
                characters=len(document.text),
                lines=lines,
                pages=document.pages,
                notes=self._noted(notes),
                next_cursor=None if cut == stop else f"{cut}-{stop}-{document.sha256[:_DIGITS]}",
            )

        most = min(stop - first, self._most)
        length = _largest(most, lambda size: self._fits(answer(first + size), structured)) or 1
        cut = stop
        if stop - first > length:
            # after a line, if one ends in the last quarter of what fits
            line_end = document.text.rfind("\n", first + length - length // 4, first + length)
            cut = line_end + 1 if line_end >= 0 else first + length
        return answer(cut)

    def read_places(
        self,
        places: Annotated[list[Stretch], Field(min_length=1, max_length=50)],
        cursor: Cursor = None,
        structured: bool = False,
    ) -> ReadPlaces:
        """Read several places in one call, each with the arguments of read."""
        notes: list[str] = []
        located: list[Place] = []
        for place in places:
            name, document = self._document(place.file, place.row, notes)
            located += locate(
                name, document, [span_of(document, place.file, place.by, place.start, place.end)]
            )
        return self._page(
            [partial(_bounded, place) for place in located],
            cursor,
            notes,
            structured,
            lambda items: ReadPlaces(places=items),
            self._most,
        )

    def _document(self, file: str, row: str | None, notes: list[str]) -> tuple[str, DocumentText]:
        """Return the name and the document of a file, or of a row of it."""
        documents = self._documents.read(file, notes)
        first = list(islice(documents, 1))
        document = choose_row((source.document for source in chain(first, documents)), file, row)
        return first[0].file, document

    def verify(
        self,
        quote: Annotated[str, Field(min_length=1, description="As you would quote it.")],
        file: Files,
        cursor: Cursor = None,
        structured: bool = False,
    ) -> VerifiedQuote:
        """Check a quotation before you use it: is it there word for word, where, and if not, which
        words differ?
        """
        notes: list[str] = []
        verified = verify(quote, self._documents.read(file, notes, several=True))
        match = verified.match
        if match is None:
            raise InputError(f"{file} has no text to verify a quote in")
        return self._page(
            [partial(_quote, place) for place in verified.places],
            cursor,
            notes,
            structured,
            lambda items: VerifiedQuote(
                match=match,
                word_for_word=verified.word_for_word,
                similarity=round(verified.similarity, 3),
                places=items,
            ),
        )

    def status(self) -> Status:
        """Return the allowed folders, the index with its fields, the model and the limit."""
        index = None
        if self.settings.index is not None:
            store = self._models.store()
            index = {
                "place": self.settings.index,
                "documents": store.last_commit().documents,
                "model": store.settings.model,
                "fields": dict(store.settings.fields),
            }
        return {
            "version": __version__,
            "roots": [str(root) for root in self.settings.roots],
            "index": index,
            "model": self.settings.model,
            "model_loaded": self._models.loaded,
            "max_characters": self._most,
        }

    def _fits(self, answer: ToolResult, structured: bool) -> bool:
        """Return whether an answer is within the limit as it is sent: as JSON, with all escapes."""
        sent = answer.model_dump(mode="json") if structured else shown(answer)
        return len(json.dumps(sent, ensure_ascii=False)) <= self._most - _MESSAGE_CHARS

    def _noted(self, notes: list[str]) -> list[str]:
        """Return notes that fit into a quarter of an answer."""
        most = self._most // 4 // _NOTES
        shown = [_short(one_line(note), most) for note in notes[:_NOTES]]
        if len(notes) > len(shown):
            shown.append(f"{len(notes) - len(shown):,} more notes; `runnel read` prints all")
        return shown

    def _page(
        self,
        items: Sequence[Callable[[int], T]],
        cursor: str | None,
        notes: list[str],
        structured: bool,
        page: Callable[[list[T]], Page],
        most: int | None = None,
    ) -> Page:
        """Return the page of those items from the cursor on that fit into one answer, at least one.

        Args:
            items: functions that make an item whose texts have at most a number of characters.
            most: this number (default: a quarter of an answer); less where one item does not fit.
        """
        most = self._most // 4 if most is None else most
        made = [make(most) for make in items]
        # of the whole answer: a cursor has it, and so continues no other answer
        fingerprint = hashlib.sha256("\n".join(map(repr, made)).encode()).hexdigest()[:12]
        first = 0 if cursor is None else _continued(cursor, fingerprint, len(items))[0]
        shown_notes = self._noted(notes)

        def answer(count: int) -> Page:
            stop = first + count
            more = f"{stop}-{len(items)}-{fingerprint}" if stop < len(items) else None
            return page(made[first:stop]).model_copy(
                update={
                    "total": len(items),
                    "first": first + 1,
                    "notes": shown_notes,
                    "next_cursor": more,
                }
            )

        left = len(items) - first
        count = _largest(left, lambda number: self._fits(answer(number), structured))
        if left and not count:  # one item, with less text
            count = 1
            while most > 1 and not self._fits(answer(1), structured):
                most //= 2
                made[first] = items[first](most)
        return answer(count)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, if less fits better; 0 if none does."""
    return bisect_left(range(most), True, key=lambda number: not fits(number + 1))


def _best(hits: Sequence[Hit], count: int) -> list[tuple[Hit, AnsweringSentence | None]]:
    """Return the best sentence of each document (None if it has none), and of all others the best,
    `count` together with these; in the order of the documents.
    """
    others = sorted(
        (-sentence.score, rank, place)
        for rank, hit in enumerate(hits)
        for place, sentence in enumerate(hit.sentences)
        if place
    )
    kept = {(rank, place) for _, rank, place in others[: max(0, count - len(hits))]}
    return [
        (hit, sentence)
        for rank, hit in enumerate(hits)
        for place, sentence in enumerate(hit.sentences or [None])
        if not place or (rank, place) in kept
    ]


def _by_document(items: Sequence[IndexedDocument]) -> list[IndexedDocument]:
    """Join documents with one sentence each: sentences of a document follow each other."""
    documents: dict[str, IndexedDocument] = {}
    for item in items:
        document = documents.setdefault(item.file, item.model_copy(update={"sentences": []}))
        document.sentences.extend(item.sentences)
    return list(documents.values())


def _bounded(place: P, most: int) -> P:
    """Return a place with a short id, which `read` takes, and with a text and headings of at most
    `most` characters each.
    """
    id = None if place.id is None else short_name(place.id)
    headings = tuple(_short(title, most // _HEADINGS) for title in place.headings[-_HEADINGS:])
    row = None if place.table_row is None else place.table_row[:most]
    return replace(place, id=id, text=place.text[:most], table_row=row, headings=headings)


def _listed(name: str, hit: Hit, sentence: AnsweringSentence | None, most: int) -> IndexedDocument:
    """Return a document with one of its sentences."""
    sentences = [] if sentence is None else [_sentence(replace(sentence, file=name, id=None), most)]
    return IndexedDocument(
        file=name,
        source=_short(hit.source, most),
        title=_short(hit.title, most),
        sentences=sentences,
    )


def _sentence(sentence: AnsweringSentence, most: int) -> AnsweringSentence:
    listed = sentence.also[: min(_ALSO, most // 160)]
    return replace(
        _bounded(sentence, most),
        before=sentence.before[max(0, len(sentence.before) - most // 2) :],
        after=sentence.after[: most // 2],
        also=tuple(_bounded(place, most // 4) for place in listed),
        also_omitted=sentence.also_omitted + len(sentence.also) - len(listed),
    )


def _quote(quoted: QuotedPlace, most: int) -> ListedQuote:
    sizes = accumulate(len(change.quote) + len(change.text) for change in quoted.changes)
    shown = sum(size <= most for size in sizes)
    return ListedQuote(
        **vars(_bounded(quoted, most)) | {"changes": quoted.changes[:shown]},
        changes_omitted=len(quoted.changes) - shown,
    )


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


def refusal(error: Exception, most: int) -> str:
    """Return an error as text. It may quote documents and names of files, so it is marked and cut
    as they are.
    """
    reason = one_line(describe(error))
    length = (most - _MESSAGE_CHARS) // 2  # JSON escapes each backslash and quotation mark
    cut = ""
    if len(reason) > length:
        cut = f"; here the first {length:,} of {len(reason):,} characters"
    return "\n".join(
        [
            f"the reason may quote documents{cut}:",
            *_quotation([reason[:length]], secrets.token_hex(_MARK_BYTES)),
        ]
    )


def shown(answer: ToolResult | Status) -> str:
    """Return an answer as text."""
    mark = secrets.token_hex(_MARK_BYTES)
    if isinstance(answer, dict):
        return json.dumps(answer, indent=1, ensure_ascii=False)
    warning = unanswered(answer.answers) if isinstance(answer, Found | Searched) else ""
    lines = [*([warning] if warning else []), *_lines(answer, mark)]
    # Notes may have names of files, and words of what their parsers say.
    lines += _quotation([f"note: {one_line(note)}" for note in answer.notes], mark)
    if answer.next_cursor is not None:
        lines.append(f"continues with cursor {answer.next_cursor}")
    return "\n".join(lines)


def _lines(answer: ToolResult, mark: str) -> Iterator[str]:
    """Yield what an answer says about itself, then the words of documents between marks."""
    match answer:
        case Read():
            yield f"the document has {answer.characters} characters and {answer.lines} lines"
            yield from _text_lines(answer.place, mark)
        case VerifiedQuote():
            yield (
                f"{answer.match}: {'' if answer.word_for_word else 'not '}word for word,"
                f" similarity {answer.similarity}"
            )
            yield from _quotation(_place_lines(answer.places, mark), mark)
        case ToolList():
            yield f"{answer.total} in all"
    match answer:
        case ReadPlaces():
            for place in answer.places:
                yield from _text_lines(place, mark)
        case ListedFiles():
            yield from _quotation(map(one_line, answer.files), mark)
        case Searched():
            lines = chain.from_iterable(_document_lines(one, mark) for one in answer.documents)
            yield from _quotation(lines, mark)
        case Found():
            yield from _quotation(_place_lines(answer.sentences, mark), mark)


def _text_lines(place: Place, mark: str) -> Iterator[str]:
    yield _where(place)
    yield from _quotation([f"{_heading(place)}{_under(place)}"], mark)
    yield from _quotation([place.text], mark)


def _document_lines(document: IndexedDocument, mark: str) -> Iterator[str]:
    title = json.dumps(_short(document.title, _TITLE_CHARS), ensure_ascii=False)
    named = f"{one_line(document.file)} {title}" if document.title else one_line(document.file)
    return _place_lines(document.sentences, mark, named) if document.sentences else iter([named])


def _place_lines(
    places: Sequence[AnsweringSentence | ListedQuote], mark: str, named: str = ""
) -> Iterator[str]:
    """Yield a line for each place, below the names of its document and its row: the probability or
    the match, the place, the headings and the words.
    """
    for heading, group in groupby(places, key=partial(_heading, named=named)):
        yield heading
        yield from (_place_line(place, mark) for place in group)


def _place_line(place: AnsweringSentence | ListedQuote, mark: str) -> str:
    labels = [_where(place)]
    words = _flowed(place.table_row or place.text, place.kind)
    if isinstance(place, ListedQuote):
        labels.insert(0, f"{place.match}{' except for case' if place.case_differs else ''}")
        words += "".join(
            f"\nquote: {json.dumps(change.quote)}  document: {json.dumps(change.text)}"
            for change in place.changes
        )
    else:
        if place.answers is not None:
            labels.insert(0, percent(place.answers))
        if others := len(place.also) + place.also_omitted:
            labels.append(f"and {counted(others, 'more place')}")
        if place.before or place.after:
            before, after = (_flowed(text, place.kind) for text in (place.before, place.after))
            words = f"{before} [answer {mark}]{words}[/answer] {after}".strip()
    return f"{', '.join(labels)}{_under(place)}: {words}"


def _heading(place: Place, named: str = "") -> str:
    """Return the line with the name of a document, its row and its digest."""
    row = "" if place.id is None else f", row {json.dumps(place.id)}"
    return f"{named or one_line(place.file)}{row}, sha256 {place.sha256[:_DIGITS]}"


def _under(place: Place) -> str:
    """Return the last headings above a place."""
    titles = [_short(normalize(title), _TITLE_CHARS) for title in place.headings]
    return f", under {' > '.join(titles[-_HEADINGS_SHOWN:])}" if titles else ""


def _flowed(text: str, kind: str) -> str:
    """Return words of a document in one line; of code in lines with more indentation."""
    if kind == "code":
        return "\n    ".join(text.strip("\n").splitlines())
    return normalize(text)


def _where(place: Place) -> str:
    where = f"line {place.line}" if place.page is None else f"page {place.page}"
    shown = len(place.text)
    cut = f", here only its first {shown}" if shown < place.end - place.start else ""
    return f"{where}, characters {place.start}-{place.end}{cut}"


def _quotation(lines: Iterable[str], mark: str) -> list[str]:
    text = "\n".join(lines)
    return [f"[document text {mark}]", text, f"[end {mark}]"] if text else []
