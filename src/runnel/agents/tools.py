"""What the tools do: plain functions that block, without the protocol."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from runnel import __version__
from runnel.agents import results
from runnel.agents.documents import INDEXED, AgentDocuments, AgentSettings, digest
from runnel.agents.models import Models
from runnel.errors import InputError
from runnel.records import Hit, highest, probability
from runnel.search.finding import Answer, Place, find, locate, locate_sentences
from runnel.search.verifying import Quoted, verify
from runnel.text.documents.document import DocumentText
from runnel.text.documents.ranges import By, choose_row, span_of

Progress = Callable[[int, int | None], None]
T = TypeVar("T", results.AnsweringSentence, results.FoundDocument, results.QuotedPassage)

_HEADING_CHARS, _HEADINGS = 200, 8
_DIGITS = 12  # the least of a SHA-256 that identify a document
_LIST_CURSOR = re.compile(r"(\d{1,12})-([0-9a-f]{12})", re.ASCII)
_READ_CURSOR = re.compile(r"(\d{1,12})-(\d{1,12})-([0-9a-f]{12})", re.ASCII)


class Tools:
    """The tools of one server. All methods may be called from several threads; `progress` may raise to stop a call."""

    def __init__(self, settings: AgentSettings, models: Models | None = None) -> None:
        self.settings = settings
        self._models = models or Models(settings)
        self._documents = AgentDocuments(settings, self._models.store)

    def search(self, query: str, top_k: int, sentences: int, cursor: str | None, progress: Progress) -> results.Searched:
        """Return documents of the index that answer the query; the index of a project is first brought up to date.

        Documents of files outside of the allowed folders are left out, with a note.
        """
        notes: list[str] = []
        read = 0

        def count(tokens: int) -> None:
            nonlocal read
            read += tokens
            progress(read, None)

        with self._models.index(notes, count) as index:
            asked = top_k
            while True:
                found = index.search(query, asked, sentences=sentences, progress=count)
                shown = [hit for hit in found if self._documents.shows(hit.source)]
                if len(shown) >= top_k or len(found) < asked:
                    break
                asked *= 2
        if len(shown) < len(found):
            notes.append("documents of files outside of the allowed folders are not shown")
        hits = [_hit(replace(hit, rank=rank), self._most(sentences)) for rank, hit in enumerate(shown[:top_k], start=1)]
        answers = highest(hit.answers for hit in shown[:top_k])
        page, next_cursor = self._page(hits, cursor)
        return results.Searched(answers=answers, documents=page, total=len(hits), notes=notes, next_cursor=next_cursor)

    def find(self, query: str, file: str, top_k: int, context: int, cursor: str | None, progress: Progress) -> results.Found:
        """Return sentences of a file that answer the query."""
        notes: list[str] = []
        documents = self._documents.read(file, notes)
        retriever = self._models.retriever()
        if retriever.remembers and len(documents) == 1 and documents[0].vectors is None and documents[0].document.text.strip():
            (vectors,) = retriever.remember([documents[0].document], progress=progress)
            documents = [self._documents.remember(documents[0], vectors)]
        findings = find(retriever, query, documents, top_k=top_k, context=context, progress=progress)
        digests = {one.document.id: one.document.sha256 for one in documents}
        sentences = [
            _sentence(rank, answer, digests[answer.place.id], self._most(1), calibrated=retriever.calibrated)
            for rank, answer in enumerate(findings.answers, start=1)
        ]
        page, next_cursor = self._page(sentences, cursor)
        answers = findings.answerable
        return results.Found(answers=answers, sentences=page, total=len(sentences), notes=notes, next_cursor=next_cursor)

    def read(
        self, file: str, row: str | None, by: By, start: int | None, end: int | None, sha256: str | None, cursor: str | None
    ) -> results.Read:
        """Return a stretch of a document (`span_of`), cut where the answer is full.

        `sha256`: what the document's text must have, or its first digits, 12 or more.
        """
        notes: list[str] = []
        documents = self._documents.read(file, notes)
        document = choose_row([one.document for one in documents], file, row)
        if sha256 is not None and (len(sha256) < _DIGITS or not document.sha256.startswith(sha256.lower())):
            raise InputError(f"{file} has changed: its text has the SHA-256 {document.sha256}; expected {sha256}")
        first, stop = span_of(document, file, by, start, end)
        if cursor is not None:
            first, stop = _continued(cursor, document, file)
        cut = _cut(document.text, first, stop, self.settings.max_characters)
        (place,) = locate(documents[0].file, document, [(first, cut)])
        return results.Read(
            **_anchor(place, document.sha256) | {"line": document.text.count("\n", 0, first) + 1},
            text=document.text[first:cut],
            complete=cut == stop,
            characters=len(document.text),
            lines=document.text.count("\n") + 1,
            pages=document.pages,
            notes=notes,
            next_cursor=None if cut == stop else f"{cut}-{stop}-{document.sha256[:_DIGITS]}",
        )

    def verify(self, quote: str, file: str, cursor: str | None) -> results.VerifiedQuote:
        """Return the places of a quote in a file."""
        notes: list[str] = []
        verified = verify(quote, self._documents.read(file, notes))
        if verified.match is None:
            raise InputError(f"{file} has no text to verify a quote in")
        places = [_quoted(one, self._most(1)) for one in verified.places]
        page, next_cursor = self._page(places, cursor)
        return results.VerifiedQuote(
            match=verified.match,
            word_for_word=verified.word_for_word,
            similarity=round(verified.similarity, 3),
            places=page,
            total=len(places),
            notes=notes,
            next_cursor=next_cursor,
        )

    def status(self) -> results.ServerStatus:
        """Return the settings, and the state of the model and the index."""
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

    # ---- bounded answers ---------------------------------------------------------------------------------------------

    def _most(self, count: int) -> int:
        """Return the most characters of each of `count` texts that must fit together into one answer."""
        return self.settings.max_characters // max(4, 2 * count)

    def _page(self, items: Sequence[T], cursor: str | None) -> tuple[list[T], str | None]:
        """Return the items from the cursor on that fit into one answer, at least one, and the cursor of the rest."""
        fingerprint = hashlib.sha256("\n".join(map(_identity, items)).encode()).hexdigest()[:12]
        first = 0
        if cursor is not None:
            match = _LIST_CURSOR.fullmatch(cursor)
            if match is None or match[2] != fingerprint or int(match[1]) >= len(items):
                raise InputError(f"the cursor {cursor!r} does not continue these results; call again without a cursor")
            first = int(match[1])
        left, stop = self.settings.max_characters, first
        while stop < len(items) and (stop == first or left >= _size(items[stop])):
            left -= _size(items[stop])
            stop += 1
        return list(items[first:stop]), f"{stop}-{fingerprint}" if stop < len(items) else None


def _identity(item: T) -> str:
    anchors = item.sentences if isinstance(item, results.FoundDocument) else [item]
    return f"{item.file} {[(anchor.row, anchor.start, anchor.end, anchor.sha256) for anchor in anchors]}"


def _size(item: T) -> int:
    """Return the characters of documents in an item."""
    if isinstance(item, results.FoundDocument):
        return len(item.title) + sum(map(_passage_size, item.sentences))
    size = _passage_size(item)
    if isinstance(item, results.AnsweringSentence):
        return size + len(item.before) + len(item.after)
    return size + sum(len(change.quote) + len(change.text) for change in item.changes)


def _passage_size(passage: results.Passage) -> int:
    return len(passage.text) + sum(map(len, passage.headings))


def _hit(hit: Hit, most: int) -> results.FoundDocument:
    name, title, sha256 = INDEXED + hit.id, _short(hit.title), digest(hit.text or "")
    sentences = [
        results.Passage(**_anchor(place, sha256), **_text(one.text, most))
        for one, place in zip(hit.sentences, locate_sentences(name, hit), strict=True)
    ]
    return results.FoundDocument(file=name, source=hit.source, title=title, rank=hit.rank, sentences=sentences)


def _sentence(rank: int, answer: Answer, sha256: str, most: int, *, calibrated: bool) -> results.AnsweringSentence:
    return results.AnsweringSentence(
        **_anchor(answer.place, sha256),
        **_text(answer.sentence.text, most),
        rank=rank,
        probability=round(probability(answer.sentence.score), 3) if calibrated else None,
        before=answer.before[-(most // 2) :],
        after=answer.after[: most // 2],
        other_places=len(answer.also),
    )


def _quoted(one: Quoted, most: int) -> results.QuotedPassage:
    changes, left = [], most
    for change in one.found.changes:
        left -= len(change.quote) + len(change.text)
        if left < 0:
            break
        changes.append(change)
    return results.QuotedPassage(
        **_anchor(one.place, one.sha256),
        **_text(one.text, most),
        match=one.found.match,
        case_differs=one.found.case_differs,
        changes=changes,
        changes_omitted=len(one.found.changes) - len(changes),
    )


def _anchor(place: Place, sha256: str) -> dict[str, Any]:
    fields = place.as_json()
    headings = [_short(heading) for heading in place.headings[-_HEADINGS:]]
    return fields | {"row": fields.pop("id"), "headings": headings, "sha256": sha256}


def _text(text: str, most: int) -> dict[str, Any]:
    return {"text": text[:most], "complete": len(text) <= most}


def _short(title: str) -> str:
    return title if len(title) <= _HEADING_CHARS else title[: _HEADING_CHARS - 1] + "…"


# ---- reading by range ------------------------------------------------------------------------------------------------


def _continued(cursor: str, document: DocumentText, file: str) -> tuple[int, int]:
    match = _READ_CURSOR.fullmatch(cursor)
    if match is None or match[3] != document.sha256[:_DIGITS] or not int(match[1]) <= int(match[2]) <= len(document.text):
        raise InputError(f"the cursor {cursor!r} does not continue {file}, which may have changed; read it without a cursor")
    return int(match[1]), int(match[2])


def _cut(text: str, first: int, stop: int, most: int) -> int:
    """Return where the answer ends: after a line, if one ends in the last quarter of what fits."""
    if stop - first <= most:
        return stop
    line_end = text.rfind("\n", first + most - most // 4, first + most)
    return line_end + 1 if line_end >= 0 else first + most
