"""Find the sentences of documents that answer a query: ranked over all documents, each with its
places and its context.

`read_documents` yields the documents of files, and `find` searches them:

1. The first look scores all sentences of each document.
2. `_Pool` keeps the best sentences so far, their documents, and their places (file, line, page).
3. The second look, if the model has one, reads the best sentences of all documents again and
   scores them again.
4. `answering` gives the answering sentences with their context. The same text counts once, with
   all its places.

The result is `Findings`; `Findings.as_json` is for programs. `Scored` holds the sentences of a
document with their scores (`models/scored.py`). Documents have numbers, in the order of reading.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, takewhile, tee
from operator import attrgetter
from typing import TYPE_CHECKING

from runnel.checks import expect_count
from runnel.errors import MissingDependency, ReadError, UnsupportedKind, describe
from runnel.records import (
    AnsweringSentence,
    Place,
    Sentence,
    group_repeats,
    highest,
    probability,
    wording,
)
from runnel.search.document_cache import DocumentCache
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import DocumentReader, Skipped, files_at
from runnel.text.documents.rows import NO_ROWS
from runnel.text.documents.table import row_words
from runnel.text.folders import Selection, Through, other_kinds

if TYPE_CHECKING:
    from runnel.models.pocket.sentence_vectors import SentenceVectors
    from runnel.models.scored import Scored
    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.request import Progress
    from runnel.text.sentences import Unit

log = logging.getLogger("runnel")
_LINE_END = re.compile("\n")
_POSITION = attrgetter("index")  # of a sentence in its document
STANDARD_INPUT = "(standard input)"  # its name in results


@dataclass(frozen=True)
class FileDocument:
    """A document to search."""

    file: str  # the name to show; several documents with one name in a row are the rows of a file
    document: DocumentText
    # `DocumentCache.content` of the file, to store its vectors; None: they are not
    content: str | None = None
    # the vectors of its sentences, if the model has read them before
    vectors: SentenceVectors | None = None
    seconds: float = 0.0  # to parse it

    @property
    def bytes(self) -> int:
        """About how much memory it needs."""
        return sys.getsizeof(self.document.text) + (
            0 if self.vectors is None else self.vectors.size
        )


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

    unit: Unit  # the unit of the sentences, and of the counts in `files`
    sentences: list[AnsweringSentence] = field(default_factory=list)  # best first
    files: list[FileRead] = field(default_factory=list)  # the files that were read, in order
    # the probability that one of the documents answers at all; None if the model cannot say
    answers: float | None = None
    # the documents that hold `sentences`
    documents: list[tuple[FileDocument, Scored]] = field(default_factory=list, repr=False)

    def as_json(self) -> dict[str, object]:
        """Return the probability, the sentences and the files, ready for JSON."""
        return {
            "answers": self.answers,
            "sentences": [sentence.as_json() for sentence in self.sentences],
            "files": [asdict(file) for file in self.files],
        }

    def count(self, file: str, document: DocumentText, sentences: int) -> None:
        """Count a document that was read."""
        if document.id is None or not self.files or self.files[-1].file != file:
            self.files.append(
                FileRead(file, document.kind, document.pages, document.encoding, document.warnings)
            )
        last = self.files[-1]
        self.files[-1] = replace(
            last,
            characters=last.characters + len(document.text),
            sentences=last.sentences + sentences,
        )


def read_documents(
    paths: Iterable[str],
    reader: DocumentReader,
    skipped: list[Skipped],
    *,
    selection: Selection | None = None,
    cache: DocumentCache | None = None,
    report: Callable[[str], None] = log.warning,
    through: Through = iter,
) -> Iterator[FileDocument]:
    """Yield the documents of files; what cannot be read is added to `skipped`, and the next file is
    read.

    Args:
        paths: files, folders and globs; "-" is standard input. A file that several of them lead to
            is read once.
        selection: which files of folders to read; None: all that git would not ignore.
        cache: documents that have been read before.
        report: receives a line for each warning about a document ("note: ...") and each error
            ("error: ...").
        through: yields the files of a list, for example to show which one is read.
    """
    files = list(files_at(paths, skipped, selection=selection, report=report))
    for name, named in through(files):
        shown = STANDARD_INPUT if name == "-" else name
        document = None
        content = None if cache is None else cache.content(name)
        stored = None if cache is None or content is None else cache.get(name, content)
        start = time.perf_counter()
        try:
            for document in reader.read(name) if stored is None else [stored[0]]:
                for warning in document.warnings:
                    report(f"note: {shown}: {warning}")
                if named and document.id is None and not document.text.strip():
                    report(f"note: {shown} is empty")
                spent = time.perf_counter() - start
                yield FileDocument(
                    shown, document, content, None if stored is None else stored[1], spent
                )
            if document is None:
                report(f"note: {shown}: {NO_ROWS}")
        except (ReadError, MissingDependency) as error:
            is_error = named or not isinstance(error, UnsupportedKind)
            skipped.append(Skipped(shown, describe(error), error=is_error))
            if is_error:
                report(f"error: {describe(error)}")
    if others := [file.file for file in skipped if not file.error]:
        report(f"note: {other_kinds(others)}")


MOST_PLACES = 1000  # the most places of a text that an answer lists; all are counted


@dataclass
class _TextPlaces:
    """The first places of a text, in the order of its documents, and the number of all.

    Attributes:
        since: the number of the document with which the text came among the best. `_Pool` counts
            its places in this document and later ones; inf: in none.
    """

    since: float = math.inf
    first: list[Place] = field(default_factory=list)
    count: int = 0


@dataclass
class _Pool:
    """The `most` best sentences of the documents so far, after the first look, each text once, and
    the documents that hold them.

    All other documents are let go, so memory does not grow with their number.
    """

    most: int
    # text -> its best score, and the number of the first document where it has it; minus, so that
    # of equal scores the earlier one is the greater
    best: dict[str, tuple[float, int]] = field(default_factory=dict)
    # the places of the best texts, in all documents
    places: dict[str, _TextPlaces] = field(default_factory=dict)
    # by number, each with the texts whose places in it are counted
    documents: dict[int, tuple[FileDocument, Scored, Collection[str]]] = field(default_factory=dict)

    def add(self, number: int, source: FileDocument, scored: Scored) -> None:
        """Add a document; numbers grow."""
        # 1. Its best sentences by text, and the sentences of the pool's texts; then the pool's best
        # texts.
        # The scores of different documents are compared with `nearness`.
        nearness = 0.0 if scored.first is None else scored.first.nearness
        groups = group_repeats(scored.ranked(), self.most, self.best)
        sentences = {wording(group[0].text): sorted(group, key=_POSITION) for group in groups}
        for text, group in zip(sentences, groups, strict=True):
            rank = (group[0].score + nearness, -number)
            self.best[text] = max(rank, self.best.get(text, rank))
        ranked = sorted(self.best.items(), key=lambda item: item[1], reverse=True)
        self.best = dict(ranked[: self.most])
        self.places = {text: self.places.get(text) or _TextPlaces(number) for text in self.best}
        # 2. The places in it of the texts that are in the pool now.
        best = {text: group for text, group in sentences.items() if text in self.best}
        listed: list[tuple[str, Sentence]] = []
        for text, group in best.items():
            places = self.places[text]
            places.count += len(group)
            listed += [(text, sentence) for sentence in group[: MOST_PLACES - len(places.first)]]
        spans = [(sentence.start, sentence.end) for _, sentence in listed]
        located = locate(source.file, source.document, spans)
        for (text, _), place in zip(listed, located, strict=True):
            self.places[text].first.append(place)
        # 3. The documents with the best texts; all others are let go.
        self.documents[number] = (source, scored, list(best))
        numbers = sorted({-negative for _, negative in self.best.values()})
        self.documents = {number: self.documents[number] for number in numbers}


def find(
    retriever: SentenceRetriever,
    query: str,
    documents: Iterable[FileDocument],
    *,
    top_k: int = 5,
    context: int = 1,
    unit: Unit | None = None,
    language: str = "auto",
    min_score: float | None = None,
    cache: DocumentCache | None = None,
    progress: Progress | None = None,
    explain: bool = False,
) -> Findings:
    """Find the sentences that answer a query: the best of all documents together.

    Only the documents with the best sentences after the first look, 88 or `top_k` if it is more,
    are kept in memory; a model with a second look then reads these sentences again. Sentences that
    differ only in whitespace count once. All their places in a file are counted if the sentence is
    among the best of that file, or of the files before it; the first `MOST_PLACES` are listed.

    Args:
        documents: read one after another, so an iterator need not hold them all.
        top_k: the most sentences to return.
        context: sentences to add before and after each; a question or heading also gets the first
            sentence below it.
        unit: "sentence", "clauses" or "paragraph"; default: the unit that the model was trained on.
        language: of the documents, for sentence boundaries (ISO 639-1); "auto": of each document
            what its first 2,000 letters tell.
        min_score: the lowest score to return, as the model scores; None: any.
        cache: where to store the vectors of documents that have a `content` and took long to read.
        progress: called after each step with (tokens done, total tokens).
        explain: also compute the `parts` of each answer's score.

    Raises:
        InputError: the query is empty, `top_k` is not a whole number from 1, the unit is unknown,
            or the model's scores have no parts.
    """
    from runnel.models.pocket.looks import READ_AGAIN_TOGETHER  # imports numpy

    expect_count(top_k, "top_k")
    findings = Findings(unit or retriever.model.unit)
    pool = _Pool(max(top_k, READ_AGAIN_TOGETHER))
    # 1. The first look at every document, which needs no other document. It reads ahead in
    # `unread`, and gives scores for the documents with text, in order.
    documents, unread = tee(documents)
    with_text = (source for source in unread if source.document.text.strip())
    if retriever.remembers:
        vectors = _vectors(retriever, with_text, findings.unit, language, cache, progress)
        scores = retriever.first_look(query, vectors)
    else:
        texts = (source.document for source in with_text)
        scores = retriever.first_look(
            query, texts, unit=findings.unit, language=language, progress=progress
        )
    # 2. The pool: the best sentences so far, and the documents that hold them.
    for number, source in enumerate(documents):
        if not source.document.text.strip():
            findings.count(source.file, source.document, 0)
            continue
        scored = next(scores)
        findings.count(source.file, source.document, len(scored))
        pool.add(number, source, scored)
    # 3. The second look at the best sentences of all documents together.
    looked = retriever.second_look([scored for _, scored, _ in pool.documents.values()])
    findings.answers = highest(scored.answers for scored in looked)
    # 4. The answering sentences, each text once with its places.
    best: dict[str, tuple[AnsweringSentence, FileDocument, Scored]] = {}
    for (number, kept), scored in zip(pool.documents.items(), looked, strict=True):
        source, _, counted = kept
        calibrated = retriever.calibrated_for(scored)
        for sentence, located in answering(
            source, scored, top_k, best, calibrated=calibrated, context=context, min_score=min_score
        ):
            key = wording(sentence.text)
            places = pool.places.setdefault(key, _TextPlaces())
            # not counted by the pool, because the text was not yet among the best
            if number < places.since or key not in counted:
                places.count += 1 + len(sentence.also) + sentence.also_omitted
                places.first += located[: MOST_PLACES - len(places.first)]
            if key not in best or sentence.score > best[key][0].score:
                best[key] = (sentence, source, scored)
    # stable: ties in file order
    for sentence, source, scored in sorted(best.values(), key=lambda item: -item[0].score)[:top_k]:
        places = pool.places[wording(sentence.text)]
        also = tuple(place for place in dict.fromkeys(places.first) if not place.same(sentence))
        omitted = places.count - len(places.first)
        if not any(place.same(sentence) for place in places.first):
            omitted -= 1  # the sentence itself, which is counted and not listed
        parts = retriever.explain(query, scored, sentence.index) if explain else None
        findings.sentences.append(replace(sentence, also=also, also_omitted=omitted, parts=parts))
        if not any(known is scored for _, known in findings.documents):
            findings.documents.append((source, scored))
    return findings


def _vectors(
    retriever: SentenceRetriever,
    documents: Iterable[FileDocument],
    unit: Unit,
    language: str,
    cache: DocumentCache | None,
    progress: Progress | None,
) -> Iterator[SentenceVectors]:
    """Yield the sentence vectors of each document, remembered or read, which the cache may then
    store.
    """
    for remembered, group in groupby(documents, key=lambda source: source.vectors is not None):
        if remembered:
            yield from (source.vectors for source in group if source.vectors is not None)
            continue
        unread, again = tee(group)
        start = time.perf_counter()
        parsing = 0.0
        tokens = 0

        def read(unread: Iterator[FileDocument] = unread) -> Iterator[DocumentText]:
            nonlocal parsing
            for number, source in enumerate(unread):
                parsing += source.seconds if number else 0.0  # the first was parsed before `start`
                yield source.document

        remembering = retriever.remember(read(), unit=unit, language=language, progress=progress)
        for source, vectors in zip(again, remembering, strict=True):
            tokens += len(vectors.ids)
            if cache is not None and source.content is not None:
                # Documents are encoded together, so each has a share of the time until now: its
                # part of the tokens until now.
                share = len(vectors.ids) / max(1, tokens)
                seconds = source.seconds + (time.perf_counter() - start - parsing) * share
                cache.put(source.file, source.content, source.document, vectors, seconds)
            yield vectors


def answering(
    source: FileDocument,
    scored: Scored,
    count: int,
    also: Collection[str] = (),
    *,
    calibrated: bool = False,
    context: int = 0,
    min_score: float | None = None,
) -> list[tuple[AnsweringSentence, list[Place]]]:
    """Return the best sentences of a document, best first, and the sentences with the
    wordings `also` wherever they rank, each with its first `MOST_PLACES` places.
    """
    text = source.document.text
    spans = scored.spans
    ranked = scored.ranked()
    if min_score is not None:
        ranked = takewhile(lambda sentence: sentence.score >= min_score, ranked)
    groups = group_repeats(ranked, count, also)
    # of each text the best sentence, and the first ones in the document
    listed = [(group[0], sorted(group, key=_POSITION)[: MOST_PLACES + 1]) for group in groups]
    sentences = {s.index: s for best, firsts in listed for s in (best, *firsts)}
    located = locate(source.file, source.document, [(s.start, s.end) for s in sentences.values()])
    places = dict(zip(sentences, located, strict=True))
    answers = []
    for group, (best, firsts) in zip(groups, listed, strict=True):
        others = [s for s in firsts if s is not best][:MOST_PLACES]
        # a question or heading also gets the first text below it
        last = max(min(len(spans) - 1, best.index + context), scored.text_below(best.index))
        sentence = AnsweringSentence(
            **vars(places[best.index]),
            score=best.score,
            index=best.index,
            answers=probability(best.score) if calibrated else None,
            before=text[spans[max(0, best.index - context), 0] : best.start],
            after=text[best.end : spans[last, 1]],
            also=tuple(places[s.index] for s in others),
            also_omitted=len(group) - 1 - len(others),
        )
        answers.append((sentence, [places[s.index] for s in firsts]))
    return answers


def locate(file: str, document: DocumentText, spans: Sequence[tuple[int, int]]) -> list[Place]:
    """Return the place of each stretch [start, end) of a document: line, page and headings of its
    first word.
    """
    text = document.text
    firsts = [end - len(text[start:end].lstrip()) for start, end in spans]
    line_ends = [match.start() for match in _LINE_END.finditer(text, 0, max(firsts, default=0))]
    places = []
    for (start, end), first in zip(spans, firsts, strict=True):
        block = document.block_at(first)
        page, headings = (None, ()) if block is None else (block.page, block.headings)
        places.append(
            Place(
                file,
                document.id,
                bisect_left(line_ends, first) + 1,
                page,
                headings,
                start,
                end,
                text[start:end],
                document.kind,
                document.sha256,
                table_row=row_words(text, block) if block is not None and block.lead else None,
            )
        )
    return places
