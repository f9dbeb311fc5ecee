"""What the tools do: plain functions that block, without the protocol. Agents read their docstrings and those of the fields."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, TypeVar

from pydantic import Field

from runnel import __version__
from runnel.agents import results
from runnel.agents.documents import INDEXED, AgentDocuments, AgentSettings, Models
from runnel.errors import InputError
from runnel.models.sentence_vectors import SentenceVectors
from runnel.records import AnsweringSentence, Hit, Place, highest
from runnel.request import Progress, TokenCount
from runnel.search.finding import find, locate
from runnel.search.verifying import QuotedPlace, verify
from runnel.text.documents.document import By, DocumentText, choose_row, span_of

T = TypeVar("T", results.ListedSentence, results.IndexedDocument, results.ListedQuote)
P = TypeVar("P", bound=Place)

_HEADING_CHARS, _HEADINGS, _ALSO = 200, 8, 3  # the most of each title, titles and other places
_DIGITS = 12  # the least of a SHA-256 that identify a document
_CURSOR = re.compile(r"(\d{1,12})-(\d{1,12})-([0-9a-f]{12})", re.ASCII)


File = Annotated[
    str, Field(description="Path below the allowed folders, relative to the first, or a name that search returned (index:...).")
]
Query = Annotated[str, Field(min_length=1, description="A question, or words to look for.")]
Cursor = Annotated[str | None, Field(description="next_cursor of the last answer, to continue it.")]


class Tools:
    """The tools of one server. All methods may be called from several threads; `progress` may raise to stop a call."""

    def __init__(self, settings: AgentSettings, models: Models | None = None) -> None:
        self.settings = settings
        self._models = models or Models(settings)
        self._documents = AgentDocuments(settings, self._models.store)

    def search(
        self,
        query: Query,
        top_k: Annotated[int, Field(ge=1, le=100, description="Documents to return.")] = 5,
        sentences: Annotated[int, Field(ge=0, le=20, description="Sentences of each document.")] = 3,
        cursor: Cursor = None,
        progress: Progress | None = None,
    ) -> results.Searched:
        """Search the index for documents, by meaning and words: when you do not know which file has the answer.

        Returns documents, best first, each with its best sentences. Continue with find or read on one of them.
        """
        notes: list[str] = []
        count = TokenCount(progress)
        with self._models.index(notes, count.part()) as index:
            asked = top_k
            while True:  # documents of files outside of the allowed folders are left out
                hits = index.search(query, asked, sentences=sentences, progress=count.part())
                shown = [hit for hit in hits if self._documents.shows(hit.source)]
                if len(shown) >= top_k or len(hits) < asked:
                    break
                asked *= 2
        if len(shown) < len(hits):
            notes.append("documents of files outside of the allowed folders are not shown")
        documents = [_document(hit, self._most(sentences)) for hit in shown[:top_k]]
        answers = highest(hit.answers for hit in shown[:top_k])
        page, place = self._page(documents, cursor)
        return results.Searched(answers=answers, documents=page, notes=notes, **place)

    def find(
        self,
        query: Query,
        file: File,
        top_k: Annotated[int, Field(ge=1, le=100, description="Sentences to return.")] = 5,
        context: Annotated[int, Field(ge=0, le=5, description="Sentences before and after each one.")] = 1,
        cursor: Cursor = None,
        progress: Progress | None = None,
    ) -> results.Found:
        """Find the sentences of one file that answer a question: when you know the file, and it is too long to read whole.

        Reads text, Markdown, HTML, PDF, Word, EPUB, and rows of jsonl and csv, of any length. The first question about a file
        reads all of it; with the default model, later ones do not.
        """
        notes: list[str] = []

        def remember(document: DocumentText) -> SentenceVectors | None:
            retriever = self._models.retriever()
            return next(retriever.remember([document], progress=progress)) if retriever.remembers else None

        documents, retriever = self._documents.read(file, notes, remember), self._models.retriever()
        findings = find(retriever, query, documents, top_k=top_k, context=context, progress=progress)
        sentences = [_sentence(sentence, self._most(1)) for sentence in findings.sentences]
        page, place = self._page(sentences, cursor)
        return results.Found(answers=findings.answers, sentences=page, notes=notes, **place)

    def read(
        self,
        file: File,
        by: Annotated[By, Field(description="The unit of start and end.")] = "line",
        start: Annotated[int | None, Field(ge=0, description="First line or page, from 1; or first character, from 0.")] = None,
        end: Annotated[int | None, Field(ge=0, description="Last line or page; or the character after the last one.")] = None,
        row: Annotated[str | None, Field(description="Id of a row of jsonl, csv or tsv.")] = None,
        sha256: Annotated[
            str | None, Field(description="Fail if the document has another SHA-256; 12 digits are enough.")
        ] = None,
        cursor: Cursor = None,
    ) -> results.Read:
        """Read the exact text of a document by lines, pages or characters: to see more around a place, or to check one again.

        Without start and end, the whole document, in as many answers as it needs.
        """
        notes: list[str] = []
        documents = self._documents.read(file, notes)
        document = choose_row([one.document for one in documents], file, row)
        if sha256 is not None and (len(sha256) < _DIGITS or not document.sha256.startswith(sha256.lower())):
            raise InputError(f"{file} has changed: its text has the SHA-256 {document.sha256}; expected {sha256}")
        first, stop = span_of(document, file, by, start, end)
        if cursor is not None:
            first, stop = _continued(cursor, document.sha256[:_DIGITS], len(document.text))
        cut = _cut(document.text, first, stop, self.settings.max_characters)
        (place,) = locate(documents[0].file, document, [(first, cut)])
        return results.Read(
            place=replace(_bounded(place, cut - first), line=document.text.count("\n", 0, first) + 1),
            characters=len(document.text),
            lines=document.text.count("\n") + 1,
            pages=document.pages,
            notes=notes,
            next_cursor=None if cut == stop else f"{cut}-{stop}-{document.sha256[:_DIGITS]}",
        )

    def verify(
        self,
        quote: Annotated[str, Field(min_length=1, description="The words, as you would quote them.")],
        file: File,
        cursor: Cursor = None,
    ) -> results.VerifiedQuote:
        """Check a quotation before you use it: is it in the file word for word, where, and if not, which words differ?"""
        notes: list[str] = []
        verified = verify(quote, self._documents.read(file, notes))
        if verified.match is None:
            raise InputError(f"{file} has no text to verify a quote in")
        page, place = self._page([_quote(one, self._most(1)) for one in verified.places], cursor)
        similarity = round(verified.similarity, 3)
        return results.VerifiedQuote(
            match=verified.match, word_for_word=verified.word_for_word, similarity=similarity, places=page, notes=notes, **place
        )

    def status(self) -> results.ServerStatus:
        """Return the folders whose files can be read, the index, the model and the size of an answer."""
        index = None
        if self.settings.index is not None:
            with self._models.store() as store:
                documents, model = store.last_commit().documents, store.settings.model
            index = results.IndexStatus(place=self.settings.index, documents=documents, model=model)
        return results.ServerStatus(
            version=__version__,
            roots=[str(root) for root in self.settings.roots],
            index=index,
            model=self.settings.model,
            model_loaded=self._models.loaded,
            max_characters=self.settings.max_characters,
        )

    def _most(self, count: int) -> int:
        """Return the most characters of each of `count` texts that must fit together into one answer."""
        return self.settings.max_characters // max(4, 2 * count)

    def _page(self, items: Sequence[T], cursor: str | None) -> tuple[list[T], dict[str, Any]]:
        """Return the items from the cursor on that fit into one answer, at least one, and the fields of a `ToolList`."""
        fingerprint = hashlib.sha256("\n".join(map(_identity, items)).encode()).hexdigest()[:12]
        first = 0 if cursor is None else _continued(cursor, fingerprint, len(items))[0]
        left, stop = self.settings.max_characters, first
        while stop < len(items) and (stop == first or left >= _size(items[stop])):
            left -= _size(items[stop])
            stop += 1
        more = f"{stop}-{len(items)}-{fingerprint}" if stop < len(items) else None
        return list(items[first:stop]), {"total": len(items), "first": first + 1, "next_cursor": more}


def _identity(item: T) -> str:
    places = item.sentences if isinstance(item, results.IndexedDocument) else [item]
    return f"{item.file} {[(place.id, place.start, place.end, place.sha256) for place in places]}"


def _size(item: Place | results.IndexedDocument) -> int:
    if isinstance(item, results.IndexedDocument):
        return len(item.title) + sum(map(_size, item.sentences))
    size = len(item.text) + sum(map(len, item.headings))
    if isinstance(item, results.ListedSentence):
        size += len(item.before) + len(item.after) + sum(map(_size, item.also))
    if isinstance(item, results.ListedQuote):
        size += sum(len(change.quote) + len(change.text) for change in item.changes)
    return size


def _bounded(place: P, most: int) -> P:
    return replace(place, text=place.text[:most], headings=tuple(_short(heading) for heading in place.headings[-_HEADINGS:]))


def _document(hit: Hit, most: int) -> results.IndexedDocument:
    name = INDEXED + hit.id
    sentences = [_sentence(replace(sentence, file=name, id=None), most) for sentence in hit.sentences]
    return results.IndexedDocument(file=name, source=hit.source, title=_short(hit.title), sentences=sentences)


def _sentence(sentence: AnsweringSentence, most: int) -> results.ListedSentence:
    also = tuple(_bounded(place, most // 4) for place in sentence.also[:_ALSO])
    around = {"before": sentence.before[-(most // 2) :], "after": sentence.after[: most // 2], "also": also}
    omitted = len(sentence.also) - len(also)
    return results.ListedSentence(**vars(_bounded(sentence, most)) | around, also_omitted=omitted)


def _quote(quoted: QuotedPlace, most: int) -> results.ListedQuote:
    sizes = accumulate(len(change.quote) + len(change.text) for change in quoted.changes)
    shown = sum(size <= most for size in sizes)
    fields = vars(_bounded(quoted, most)) | {"changes": quoted.changes[:shown]}
    return results.ListedQuote(**fields, changes_omitted=len(quoted.changes) - shown)


def _short(title: str) -> str:
    return title if len(title) <= _HEADING_CHARS else title[: _HEADING_CHARS - 1] + "…"


def _continued(cursor: str, fingerprint: str, size: int) -> tuple[int, int]:
    """Return from where to where an answer of so many items or characters continues."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or match[3] != fingerprint or not int(match[1]) <= int(match[2]) <= size:
        raise InputError(f"the cursor {cursor!r} does not continue this answer, or its file has changed; call again without it")
    return int(match[1]), int(match[2])


def _cut(text: str, first: int, stop: int, most: int) -> int:
    """Return where the answer ends: after a line, if one ends in the last quarter of what fits."""
    if stop - first <= most:
        return stop
    line_end = text.rfind("\n", first + most - most // 4, first + most)
    return line_end + 1 if line_end >= 0 else first + most
