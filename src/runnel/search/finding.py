"""Find the sentences of documents that answer a query: ranked over all documents, each with its places and its context.

`Findings.as_json` is the one form of the result for programs.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, takewhile, tee
from typing import TYPE_CHECKING

from runnel.errors import InputError, MissingDependency, ReadError, UnsupportedKind, describe
from runnel.records import Hit, Sentence, expect_count, group_repeats, highest, normalize
from runnel.text.documents.document import LINES, DocumentText
from runnel.text.documents.reader import DocumentReader, Skipped, files_at
from runnel.text.documents.rows import NO_ROWS

if TYPE_CHECKING:
    from runnel.models.sentence_retriever import Scored, SentenceRetriever
    from runnel.models.sentence_vectors import SentenceVectors
    from runnel.search.remembered import DocumentCache, Entry
    from runnel.text.folders import Selection
    from runnel.text.sentences import Unit

log = logging.getLogger("runnel")
_PageAndHeadings = tuple[int | None, tuple[str, ...]]
_LINE_END = re.compile("\n")
STANDARD_INPUT = "(standard input)"  # its name in results


@dataclass(frozen=True)
class Place:
    """The place of a sentence. `line` (of the canonical text) and `page` count from 1; `id` is a row's."""

    file: str
    id: str | None
    line: int
    page: int | None
    headings: tuple[str, ...]
    start: int
    end: int
    kind: str = field(default="txt", repr=False)

    def __str__(self) -> str:
        """Return the place as a user finds it in the file: a line number, if it is text."""
        if self.id is not None:
            return f"{self.file}, row {self.id}"
        if self.page is not None:
            return f"{self.file}, page {self.page:,}"
        return f"{self.file}:{self.line}" if self.kind in LINES else self.file

    @property
    def where(self) -> str:
        """Return the place in the file, in a form for programs: "12" (a line of text), "page 3", "row a7", "characters 5-60"."""
        if self.id is not None:
            return f"row {self.id}"
        if self.kind in LINES:
            return str(self.line)
        return f"characters {self.start}-{self.end}" if self.page is None else f"page {self.page}"

    def as_json(self) -> dict[str, object]:
        """Return all fields but the file's kind, which is known from the file."""
        return {key: value for key, value in asdict(self).items() if key != "kind"}


@dataclass(frozen=True)
class Answer:
    """A sentence in its context with all its places, in reading order; `place` is that of the best score.

    `parts` are the summands of the score, if requested (`SentenceRetriever.explain`).
    """

    sentence: Sentence
    before: str
    after: str
    place: Place
    places: tuple[Place, ...]
    parts: Mapping[str, float] | None = None

    @property
    def also(self) -> tuple[Place, ...]:
        """Return all places but the best."""
        return tuple(place for place in self.places if place != self.place)

    def merge(self, later: Answer) -> Answer:
        """Merge the same sentence of a later document: the better one is shown."""
        best = later if later.sentence.score > self.sentence.score else self
        return replace(best, places=self.places + later.places)

    def as_json(self) -> dict[str, object]:
        """Return the sentence, its place and context, and its other places."""
        also = [place.as_json() for place in self.also]
        value = self.place.as_json() | asdict(self.sentence) | {"before": self.before, "after": self.after, "also": also}
        return value if self.parts is None else value | {"parts": dict(self.parts)}


@dataclass(frozen=True)
class FileDocument:
    """A document to search."""

    file: str  # the name to show; several documents with one name in a row are the rows of a file
    document: DocumentText
    entry: Entry | None = None  # its place in a cache, to store its vectors there
    vectors: SentenceVectors | None = None  # of its sentences, if the model has read them before
    seconds: float = 0.0  # to parse it


@dataclass(frozen=True)
class FileRead:
    """A file that was read, with the size of its text; rows of a file are counted together."""

    file: str
    kind: str
    pages: int | None
    encoding: str | None
    warnings: tuple[str, ...]
    characters: int = 0
    sentences: int = 0


@dataclass
class Findings:
    """What `find` found."""

    unit: Unit  # of the answers and of the counts in `files`
    answers: list[Answer] = field(default_factory=list)  # best first
    files: list[FileRead] = field(default_factory=list)  # that were read, in order
    answerable: float | None = None  # the probability that one of the documents answers at all; None if the model cannot say
    documents: list[tuple[FileDocument, Scored]] = field(default_factory=list, repr=False)  # of the answers

    def as_json(self) -> dict[str, object]:
        """Return {"answers": the probability, "sentences": the answers, "files": the files}, ready for JSON."""
        sentences, files = [answer.as_json() for answer in self.answers], [asdict(file) for file in self.files]
        return {"answers": self.answerable, "sentences": sentences, "files": files}

    def count(self, file: str, document: DocumentText, sentences: int) -> None:
        """Count a document that was read."""
        if document.id is None or not self.files or self.files[-1].file != file:
            self.files.append(FileRead(file, document.kind, document.pages, document.encoding, document.warnings))
        last = self.files[-1]
        self.files[-1] = replace(last, characters=last.characters + len(document.text), sentences=last.sentences + sentences)


def read_documents(
    paths: Iterable[str],
    reader: DocumentReader,
    skipped: list[Skipped],
    *,
    selection: Selection | None = None,
    cache: DocumentCache | None = None,
    report: Callable[[str], None] = log.warning,
) -> Iterator[FileDocument]:
    """Yield the documents of files; what cannot be read is added to `skipped`, and the next file is read.

    Args:
        paths: files, folders and globs; "-" is standard input. A file that several of them lead to is read once.
        selection: which files of folders to read; None: all that git would not ignore.
        cache: documents that have been read before.
        report: receives a line for each warning about a document ("note: ...") and each error ("error: ...").
    """
    for name, named in files_at(paths, skipped, selection=selection, report=report):
        shown = STANDARD_INPUT if name == "-" else name
        document = None
        entry = None if cache is None else cache.entry(name)
        stored = None if cache is None or entry is None else cache.get(entry)
        start = time.perf_counter()
        try:
            for document in reader.read(name) if stored is None else [stored[0]]:
                for warning in document.warnings:
                    report(f"note: {shown}: {warning}")
                if named and document.id is None and not document.text.strip():
                    report(f"note: {shown} is empty")
                spent = time.perf_counter() - start
                yield FileDocument(shown, document, entry, None if stored is None else stored[1], spent)
            if document is None:
                report(f"note: {shown}: {NO_ROWS}")
        except (ReadError, MissingDependency) as error:
            one = Skipped(shown, describe(error), error=named or not isinstance(error, UnsupportedKind))
            skipped.append(one)
            if one.error:
                report(f"error: {one.reason}")
    if others := [one.file for one in skipped if not one.error]:
        from runnel.text.folders import other_kinds

        report(f"note: {other_kinds(others)}")


class _Pool:
    """The best sentences of the documents so far, after the first look, each text once, and the documents that hold them.

    All other documents are let go, so memory does not grow with their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._best: dict[str, tuple[float, int]] = {}  # text -> its best score, and minus the number of its first document
        self.places: dict[str, list[Place]] = {}  # of these texts, in all documents
        self.documents: dict[int, tuple[FileDocument, Scored]] = {}

    def add(self, number: int, one: FileDocument, scored: Scored, nearness: float) -> None:
        """Add a document with its `SentenceRetriever.nearness`; numbers grow."""
        groups = group_repeats(scored.ranked(), self._count, self._best)
        texts = [normalize(group[0].text) for group in groups]
        for text, group in zip(texts, groups, strict=True):
            found = group[0].score + nearness, -number
            self._best[text] = max(found, self._best.get(text, found))
        self._best = dict(sorted(self._best.items(), key=lambda item: item[1], reverse=True)[: self._count])
        still = [(text, s) for text, group in zip(texts, groups, strict=True) if text in self._best for s in _in_order(group)]
        self.places = {text: self.places.get(text, []) for text in self._best}
        for (text, _), place in zip(still, locate(one.file, one.document, [(s.start, s.end) for _, s in still]), strict=True):
            self.places[text].append(place)
        self.documents[number] = one, scored
        self.documents = {n: self.documents[n] for n in sorted({-n for _, n in self._best.values()})}


def _in_order(sentences: Iterable[Sentence]) -> list[Sentence]:
    return sorted(sentences, key=lambda sentence: sentence.index)


def find(
    retriever: SentenceRetriever,
    query: str,
    documents: Iterable[FileDocument],
    *,
    top_k: int = 5,
    context: int = 1,
    unit: Unit | None = None,
    min_score: float | None = None,
    cache: DocumentCache | None = None,
    progress: Callable[[int, int], None] | None = None,
    explain: bool = False,
) -> Findings:
    """Find the sentences that answer a query: the best of all documents together.

    Only the documents with the best sentences after the first look, 60 or `top_k`, are kept in memory; a model with a second look
    then reads these sentences again. Sentences that differ only in whitespace count once. All their places in a file are kept if
    the sentence is among the best of that file, or of the files before it.

    Args:
        documents: read one after another, so an iterator need not hold them all.
        top_k: the most sentences to return.
        context: sentences to add before and after each; a question or heading also gets the first sentence below it.
        unit: "sentence", "clauses" or "paragraph"; default: the unit that the model was trained on.
        min_score: the lowest score to return, as the model scores; None: any.
        cache: where to store the vectors of documents that have an `entry` and took long to read.
        progress: called after each step with (tokens done, total tokens).
        explain: also compute the `parts` of each answer's score.

    Raises:
        InputError: the query is empty, `top_k` is not a whole number from 1, the unit is unknown, or the model's scores have no
            parts.
    """
    from runnel.models.second_look import TOGETHER  # imports torch

    expect_count(top_k, "top_k")
    if explain and not retriever.remembers:
        raise InputError(
            f"{retriever.model.source} reads the query and the document together, so its scores have no parts to explain; "
            "use a model such as pocket"
        )
    findings, pool = Findings(unit or retriever.model.unit), _Pool(max(top_k, TOGETHER))
    documents, unread = tee(documents)
    filled = (one for one in unread if one.document.text.strip())
    if retriever.remembers:
        scores = retriever.first_look(query, _vectors(retriever, filled, findings.unit, cache, progress))
    else:
        scores = retriever.first_look(query, (one.document for one in filled), unit=findings.unit, progress=progress)
    for number, one in enumerate(documents):
        if not one.document.text.strip():
            findings.count(one.file, one.document, 0)
            continue
        scored = next(scores)
        findings.count(one.file, one.document, len(scored))
        pool.add(number, one, scored, retriever.nearness(scored))
    kept = [one for one, _ in pool.documents.values()]
    looked = retriever.second_look([scored for _, scored in pool.documents.values()])
    findings.answerable = highest(one.answers for one in looked)
    best: dict[str, Answer] = {}
    sources: dict[Place, tuple[FileDocument, Scored]] = {}
    for source in zip(kept, looked, strict=True):
        for answer in _best(*source, top_k, context, min_score, best):
            key, sources[answer.place] = normalize(answer.sentence.text), source
            best[key] = best[key].merge(answer) if key in best else answer
    for answer in sorted(best.values(), key=lambda answer: -answer.sentence.score)[:top_k]:  # stable: ties in file order
        source = sources[answer.place]
        places = dict.fromkeys([*pool.places.get(normalize(answer.sentence.text), ()), *answer.places])
        parts = retriever.explain(query, source[1], answer.sentence.index) if explain else None
        findings.answers.append(replace(answer, places=tuple(places), parts=parts))
        if not any(known is source for known in findings.documents):
            findings.documents.append(source)
    return findings


def _vectors(
    retriever: SentenceRetriever,
    documents: Iterable[FileDocument],
    unit: Unit,
    cache: DocumentCache | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[SentenceVectors]:
    """Yield the sentence vectors of each document, remembered or read, which the cache may then store."""
    for remembered, group in groupby(documents, key=lambda one: one.vectors is not None):
        if remembered:
            yield from (one.vectors for one in group if one.vectors is not None)
            continue
        unread, again = tee(group)
        start, parsing, tokens = time.perf_counter(), 0.0, 0

        def read(unread: Iterator[FileDocument] = unread) -> Iterator[DocumentText]:
            nonlocal parsing
            for number, one in enumerate(unread):
                parsing += one.seconds if number else 0.0  # the first was parsed before `start`
                yield one.document

        for one, vectors in zip(again, retriever.remember(read(), unit=unit, progress=progress), strict=True):
            tokens += len(vectors.ids)
            if cache is not None and one.entry is not None:
                # Documents are encoded together, so each has its share of the time.
                encoding = (time.perf_counter() - start - parsing) * len(vectors.ids) / max(1, tokens)
                cache.put(one.entry, one.document, vectors, one.seconds + encoding)
            yield vectors


def _best(
    one: FileDocument, scored: Scored, top_k: int, context: int, min_score: float | None, known: Collection[str]
) -> list[Answer]:
    """Return the `top_k` best sentences of a document, and the `known` ones wherever they rank."""
    document = one.document
    text, spans, ranked = document.text, scored.spans, scored.ranked()
    if min_score is not None:
        ranked = takewhile(lambda sentence: sentence.score >= min_score, ranked)
    groups = group_repeats(ranked, top_k, known)
    sentences = {s.index: s for group in groups for s in group}
    places = dict(zip(sentences, locate(one.file, document, [(s.start, s.end) for s in sentences.values()]), strict=True))

    results = []
    for group in groups:
        best = group[0]
        last = max(min(len(spans) - 1, best.index + context), scored.below(best.index))
        results.append(
            Answer(
                best,
                before=text[spans[max(0, best.index - context), 0] : best.start],
                after=text[best.end : spans[last, 1]],
                place=places[best.index],
                places=tuple(places[s.index] for s in _in_order(group)),
            )
        )
    return results


def locate(file: str, document: DocumentText, spans: Sequence[tuple[int, int]]) -> list[Place]:
    """Return the place of each stretch [start, end) of a document: line, page and headings of its first word."""
    return _locate(file, document.text, spans, document.at, document.id, document.kind)


def locate_sentences(file: str, hit: Hit, id: str | None = None, kind: str = "txt") -> list[Place]:
    """Return the place of each sentence of a search result, as `locate`."""
    return _locate(file, hit.text or "", [(one.start, one.end) for one in hit.sentences], hit.places.at, id, kind)


def _locate(
    file: str, text: str, spans: Sequence[tuple[int, int]], at: Callable[[int], _PageAndHeadings], id: str | None, kind: str
) -> list[Place]:
    firsts = [end - len(text[start:end].lstrip()) for start, end in spans]
    line_ends = [match.start() for match in _LINE_END.finditer(text, 0, max(firsts, default=0))]
    lines = [bisect_left(line_ends, first) + 1 for first in firsts]
    return [Place(file, id, line, *at(first), *span, kind) for span, first, line in zip(spans, firsts, lines, strict=True)]
