"""Find the sentences of documents that answer a query: ranked over all documents, each with its
places and its context.

`Findings.as_json` is the one form of the result for programs.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby, takewhile, tee
from pathlib import Path
from typing import TYPE_CHECKING

from runnel import __version__
from runnel.checks import expect_count
from runnel.errors import (
    InputError,
    MissingDependency,
    ReadError,
    StoreError,
    UnsupportedKind,
    describe,
)
from runnel.files import digest, expect_trusted, file_digest, signature, write
from runnel.formats import ROWS
from runnel.records import (
    AnsweringSentence,
    Place,
    Sentence,
    group_repeats,
    highest,
    normalize,
    probability,
)
from runnel.text.documents.document import HEAD_BYTES, DocumentText, recognize
from runnel.text.documents.reader import NO_ROWS, DocumentReader, Skipped, files_at

if TYPE_CHECKING:
    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.models.sentence_vectors import Scored, SentenceVectors
    from runnel.request import Progress
    from runnel.text.folders import Selection
    from runnel.text.sentences import Unit

log = logging.getLogger("runnel")
_LINE_END = re.compile("\n")
STANDARD_INPUT = "(standard input)"  # its name in results


@dataclass(frozen=True)
class FileDocument:
    """A document to search."""

    file: str  # the name to show; several documents with one name in a row are the rows of a file
    document: DocumentText
    # `DocumentCache.content` of the file, to store its vectors; None: they are not
    content: str | None = None
    vectors: SentenceVectors | None = None  # of its sentences, if the model has read them before
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

    unit: Unit  # of the sentences and of the counts in `files`
    sentences: list[AnsweringSentence] = field(default_factory=list)  # best first
    files: list[FileRead] = field(default_factory=list)  # that were read, in order
    # the probability that one of the documents answers at all; None if the model cannot say
    answers: float | None = None
    # of the sentences
    documents: list[tuple[FileDocument, Scored]] = field(default_factory=list, repr=False)

    def as_json(self) -> dict[str, object]:
        """Return the probability, the sentences and the files, ready for JSON."""
        sentences, files = (
            [one.as_json() for one in self.sentences],
            [asdict(file) for file in self.files],
        )
        return {"answers": self.answers, "sentences": sentences, "files": files}

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
    """
    for name, named in files_at(paths, skipped, selection=selection, report=report):
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
            one = Skipped(
                shown, describe(error), error=named or not isinstance(error, UnsupportedKind)
            )
            skipped.append(one)
            if one.error:
                report(f"error: {one.reason}")
    if others := [one.file for one in skipped if not one.error]:
        from runnel.text.folders import other_kinds

        report(f"note: {other_kinds(others)}")


MOST_PLACES = 1000  # of one text that an answer lists; all are counted


@dataclass
class _TextPlaces:
    """The first places of a text, in the order of its documents, and the number of all."""

    since: float = math.inf  # number of the first document that was counted when it was read
    first: list[Place] = field(default_factory=list)
    count: int = 0

    @property
    def room(self) -> int:
        return MOST_PLACES - len(self.first)


class _Pool:
    """The best sentences of the documents so far, after the first look, each text once, and the
    documents that hold them.

    All other documents are let go, so memory does not grow with their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # text -> its best score, and minus the number of its first document
        self._best: dict[str, tuple[float, int]] = {}
        self.places: dict[str, _TextPlaces] = {}  # of these texts, in all documents
        # each with the texts whose places in it are counted
        self.documents: dict[int, tuple[FileDocument, Scored, Collection[str]]] = {}

    def add(self, number: int, source: FileDocument, scored: Scored, nearness: float) -> None:
        """Add a document with its `SentenceRetriever.nearness`; numbers grow."""
        groups = group_repeats(scored.ranked(), self._count, self._best)
        texts = [normalize(group[0].text) for group in groups]
        for text, group in zip(texts, groups, strict=True):
            rank = group[0].score + nearness, -number
            self._best[text] = max(rank, self._best.get(text, rank))
        self._best = dict(
            sorted(self._best.items(), key=lambda item: item[1], reverse=True)[: self._count]
        )
        self.places = {text: self.places.get(text) or _TextPlaces(number) for text in self._best}
        best = {
            text: group for text, group in zip(texts, groups, strict=True) if text in self._best
        }
        listed = []
        for text, group in best.items():
            self.places[text].count += len(group)
            listed += [(text, s) for s in _in_order(group)[: self.places[text].room]]
        spans = [(s.start, s.end) for _, s in listed]
        located = locate(source.file, source.document, spans)
        for (text, _), place in zip(listed, located, strict=True):
            self.places[text].first.append(place)
        self.documents[number] = source, scored, list(best)
        self.documents = {
            n: self.documents[n] for n in sorted({-n for _, n in self._best.values()})
        }


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
    progress: Progress | None = None,
    explain: bool = False,
) -> Findings:
    """Find the sentences that answer a query: the best of all documents together.

    Only the documents with the best sentences after the first look, 60 or `top_k`, are kept in
    memory; a model with a second look then reads these sentences again. Sentences that differ only
    in whitespace count once. All their places in a file are counted if the sentence is among the
    best of that file, or of the files before it; the first `MOST_PLACES` are listed.

    Args:
        documents: read one after another, so an iterator need not hold them all.
        top_k: the most sentences to return.
        context: sentences to add before and after each; a question or heading also gets the first
            sentence below it.
        unit: "sentence", "clauses" or "paragraph"; default: the unit that the model was trained on.
        min_score: the lowest score to return, as the model scores; None: any.
        cache: where to store the vectors of documents that have a `content` and took long to read.
        progress: called after each step with (tokens done, total tokens).
        explain: also compute the `parts` of each answer's score.

    Raises:
        InputError: the query is empty, `top_k` is not a whole number from 1, the unit is unknown,
            or the model's scores have no parts.
    """
    from runnel.models.sentence_vectors import READ_AGAIN_TOGETHER  # imports numpy

    expect_count(top_k, "top_k")
    findings, pool = Findings(unit or retriever.model.unit), _Pool(max(top_k, READ_AGAIN_TOGETHER))
    documents, unread = tee(documents)
    filled = (source for source in unread if source.document.text.strip())
    if retriever.remembers:
        scores = retriever.first_look(
            query, _vectors(retriever, filled, findings.unit, cache, progress)
        )
    else:
        scores = retriever.first_look(
            query, (source.document for source in filled), unit=findings.unit, progress=progress
        )
    for number, source in enumerate(documents):
        if not source.document.text.strip():
            findings.count(source.file, source.document, 0)
            continue
        scored = next(scores)
        findings.count(source.file, source.document, len(scored))
        pool.add(number, source, scored, retriever.nearness(scored))
    looked = retriever.second_look([scored for _, scored, _ in pool.documents.values()])
    findings.answers = highest(scored.answers for scored in looked)
    best: dict[str, tuple[AnsweringSentence, FileDocument, Scored]] = {}
    for (number, kept), scored in zip(pool.documents.items(), looked, strict=True):
        source, _, counted = kept
        calibrated = retriever.calibrated
        for sentence, located in answering(
            source, scored, top_k, best, calibrated=calibrated, context=context, min_score=min_score
        ):
            key = normalize(sentence.text)
            places = pool.places.setdefault(key, _TextPlaces())
            if number < places.since or key not in counted:
                places.count += 1 + len(sentence.also) + sentence.also_omitted
                places.first += located[: places.room]
            if key not in best or sentence.score > best[key][0].score:
                best[key] = sentence, source, scored
    # stable: ties in file order
    for sentence, source, scored in sorted(best.values(), key=lambda item: -item[0].score)[:top_k]:
        places = pool.places[normalize(sentence.text)]
        also = tuple(place for place in dict.fromkeys(places.first) if not place.same(sentence))
        omitted = places.count - len(places.first)
        if not any(place.same(sentence) for place in places.first):
            omitted -= 1  # the sentence itself
        parts = retriever.explain(query, scored, sentence.index) if explain else None
        findings.sentences.append(replace(sentence, also=also, also_omitted=omitted, parts=parts))
        if not any(known is scored for _, known in findings.documents):
            findings.documents.append((source, scored))
    return findings


def _vectors(
    retriever: SentenceRetriever,
    documents: Iterable[FileDocument],
    unit: Unit,
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
        start, parsing, tokens = time.perf_counter(), 0.0, 0

        def read(unread: Iterator[FileDocument] = unread) -> Iterator[DocumentText]:
            nonlocal parsing
            for number, source in enumerate(unread):
                parsing += source.seconds if number else 0.0  # the first was parsed before `start`
                yield source.document

        for source, vectors in zip(
            again, retriever.remember(read(), unit=unit, progress=progress), strict=True
        ):
            tokens += len(vectors.ids)
            if cache is not None and source.content is not None:
                # Documents are encoded together, so each has its share of the time.
                encoding = (
                    (time.perf_counter() - start - parsing) * len(vectors.ids) / max(1, tokens)
                )
                cache.put(source, vectors, source.seconds + encoding)
            yield vectors


def answering(
    source: FileDocument,
    scored: Scored,
    count: int,
    known: Collection[str] = (),
    *,
    calibrated: bool = False,
    context: int = 0,
    min_score: float | None = None,
) -> list[tuple[AnsweringSentence, list[Place]]]:
    """Return the best sentences of a document, best first, and the `known` ones wherever they rank,
    each with its first `MOST_PLACES` places.
    """
    text, spans, ranked = source.document.text, scored.spans, scored.ranked()
    if min_score is not None:
        ranked = takewhile(lambda sentence: sentence.score >= min_score, ranked)
    groups = group_repeats(ranked, count, known)
    # of each text the best sentence, and the first ones in the document
    listed = [(group[0], _in_order(group)[: MOST_PLACES + 1]) for group in groups]
    sentences = {s.index: s for best, firsts in listed for s in (best, *firsts)}
    located = locate(source.file, source.document, [(s.start, s.end) for s in sentences.values()])
    places = dict(zip(sentences, located, strict=True))
    answers = []
    for group, (best, firsts) in zip(groups, listed, strict=True):
        others = [s for s in firsts if s is not best][:MOST_PLACES]
        last = max(min(len(spans) - 1, best.index + context), scored.below(best.index))
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
    return [
        Place(
            file,
            document.id,
            bisect_left(line_ends, first) + 1,
            *document.at(first),
            start,
            end,
            text[start:end],
            document.kind,
            document.sha256,
        )
        for (start, end), first in zip(spans, firsts, strict=True)
    ]


# ---- the cache of documents whose reading took long, in the user's cache folder ------------------
# find/CACHEDIR.TAG is the mark of the folder: without it, a folder with other files is not used.
# find/CONTENT-MODEL.safetensors has "document", the canonical text with its places as JSON, and
# "sentences", their vectors. CONTENT is a digest of the file and of the options for reading it,
# MODEL of the model's files, so entries never become outdated. The digest of an entry covers its
# name, so an entry in the place of another is reported. The modification time of an entry is its
# last use: when all together are larger than `LIMIT_BYTES`, the ones used longest ago are removed.
# Files of other names and subfolders are not touched.

LONG_S = 2.0  # to read a file, from which on it is remembered
LIMIT_BYTES = 1 << 30  # of all entries
_ABANDONED_S = 3600  # no writer takes so long: an older partial file is of a killed process
_MODEL_FILES = (".json", ".safetensors", ".txt")
_MARK = "CACHEDIR.TAG"  # which backup programs know, too; Source: https://bford.info/cachedir/
_MARKED = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is the cache of `runnel find`, which removes its own files from it.
"""
_ENTRY = r"[0-9a-f]{32}-[0-9a-f]{32}\.safetensors"
_OWN_NAMES = re.compile(rf"{_ENTRY}|({_ENTRY}|{re.escape(_MARK)})\.[0-9a-f]{{8}}\.partial")


def open_cache(
    load: Callable[[], SentenceRetriever],
    model: str,
    reading: Sequence[str | None],
    *,
    remember: bool | None = None,
    report: Callable[[str], None] = log.warning,
) -> DocumentCache | None:
    """Return the cache of documents. Other arguments as of `DocumentCache`.

    Args:
        remember: True also stores what was read in a moment; with False there is no cache.

    Raises:
        InputError: with True, there is no home folder.
    """
    if remember is False:
        return None
    if remember:
        cache_folder()
    return DocumentCache(load, model, reading, keep=bool(remember), report=report)


def cache_folder() -> Path:
    """Return the folder of the cache: in $RUNNEL_CACHE, or in the platform's default.

    Raises InputError if there is no home folder; a relative or an empty path is none.
    """
    if chosen := os.environ.get("RUNNEL_CACHE"):
        return Path(chosen).absolute() / "find"
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not common.is_absolute():
        home = Path(os.environ.get("USERPROFILE" if os.name == "nt" else "HOME", ""))
        if not home.is_absolute():
            raise InputError("no home folder to remember documents in; set RUNNEL_CACHE to one")
        common = home / ".cache"
    return common / "runnel" / "find"


def is_cache(folder: Path) -> bool:
    """Return whether a folder is marked as a cache.

    If not, it is missing, empty, or of a version that wrote no mark.

    Raises:
        StoreError: the folder is a link or another user's, or has other files and no mark.
    """
    if not os.path.lexists(folder):
        return False
    expect_trusted(folder)
    mark = folder / _MARK
    if mark.is_file() and not mark.is_symlink() and mark.read_bytes() == _MARKED:
        return True
    if others := [path.name for path in folder.iterdir() if not _is_own(path)]:
        raise StoreError(
            f"{folder} is not used as a cache: it holds {min(others)!r} and no {_MARK} of runnel; "
            "expected a new or an empty folder"
        )
    return False


def _is_own(path: Path) -> bool:
    return _OWN_NAMES.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def stored_files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return the last use, the bytes and the path of each file of a cache, latest first.

    Errors as of `is_cache`.
    """
    files = []
    if is_cache(folder) or folder.is_dir():
        for path in filter(_is_own, folder.iterdir()):
            with suppress(FileNotFoundError):  # another process has removed it
                status = path.lstat()
                files.append((status.st_mtime, status.st_size, path))
    return sorted(files, reverse=True)


def trim(folder: Path, most_bytes: int) -> None:
    """Remove what was used longest ago until the rest has `most_bytes`, and the partial files of
    killed writers.
    """
    total = 0
    for used, size, path in stored_files(folder):
        total += size
        if total > most_bytes or (path.suffix == ".partial" and time.time() - used > _ABANDONED_S):
            path.unlink(missing_ok=True)


@dataclass
class DocumentCache:
    """The cache entries of one model and one set of reading options."""

    load: Callable[[], SentenceRetriever]  # called when needed
    model: str
    reading: Sequence[str | None]  # encoding, unit, and the OCR command if there is one
    keep: bool = False  # whether to add all documents, however quickly they were read
    report: Callable[[str], None] = log.warning
    _failed: bool = field(default=False, init=False)  # there is no folder, or it cannot be used

    def content(self, name: str) -> str | None:
        """Return a digest of a file and of the options for reading it; None if its document is not
        remembered.
        """
        reason = ""
        with suppress(OSError, ReadError):  # reported when it is read
            if name == "-":
                reason = "standard input is not remembered"
            elif not os.path.isfile(name):  # a pipe can be read only once
                special = os.path.exists(name) and not os.path.isdir(name)
                reason = f"{name} is not a regular file, so it is not remembered" if special else ""
            elif _holds_rows(name):
                reason = f"{name} contains rows, which are not remembered"
            else:
                # they decide between kinds of text
                suffixes = "".join(Path(name).suffixes[-2:]).lower()
                return digest(file_digest(name), suffixes, __version__, json.dumps(self.reading))
        if reason and self.keep:
            self.report(f"note: {reason}")
        return None

    def get(self, name: str, content: str) -> tuple[DocumentText, SentenceVectors] | None:
        """Return the remembered document of a file, or None. A damaged entry is reported and
        removed.
        """
        if content not in self._stored or not self.load().remembers:
            return None
        path = self._path(content)
        try:
            found = _unpack(path)
            with suppress(OSError):  # of a folder that can only be read
                os.utime(path)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.report(f"note: {name} is read again: {path} cannot be used ({describe(error)})")
            with suppress(OSError):
                path.unlink()
            return None

    def put(self, source: FileDocument, vectors: SentenceVectors, seconds: float) -> None:
        """Store a document with a `content` if reading took long (`seconds`) or `keep` is set,
        unless its file has changed.

        A folder that is missing, from elsewhere or cannot be written is reported once.
        """
        if not (self.keep or seconds > LONG_S) or self._failed:
            return
        from runnel.models.memory import pack

        assert source.content is not None
        try:
            if self.content(source.file) != source.content:
                self.report(f"note: {source.file} is not remembered: it changed while it was read")
                return
            path = self._path(source.content)
            new = not is_cache(path.parent)
            if new:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write(path.parent / _MARK, _MARKED, mode=0o600)
            parts = {
                "document": json.dumps(source.document.to_wire()).encode(),
                "sentences": vectors.to_bytes(),
            }
            # What a user reads is private, also in a folder that is not.
            write(path, pack(parts, "", path.name), mode=0o600)
            trim(path.parent, LIMIT_BYTES)
        except (OSError, InputError, StoreError) as error:
            self._failed = True
            self.report(
                f"note: {source.file} is not remembered ({describe(error)}); "
                "set RUNNEL_CACHE to a folder that can be written, or give --no-remember"
            )
            return
        if new:
            self.report(
                f"note: documents are stored in {path.parent} for later questions; `runnel info"
                " --cache` shows and empties it"
            )

    def _path(self, content: str) -> Path:
        return cache_folder() / f"{content}-{self._model_digest}.safetensors"

    @cached_property
    def _model_digest(self) -> str:
        """A digest of the model's dtypes and of the state of its files; to hash them takes a tenth
        of a second.
        """
        from runnel.models.base import find_model

        found, _ = find_model(self.model)
        folder = found if found.is_dir() else found.parent
        files = sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES)
        return digest(
            *self.load().model.backbone.dtypes,
            *(f"{path.name} {signature(path)}" for path in files),
        )

    @cached_property
    def _stored(self) -> set[str]:
        """Digests of the contents that have an entry, with this model or another."""
        try:
            return {path.name.partition("-")[0] for _, _, path in stored_files(cache_folder())}
        except (OSError, InputError, StoreError):  # reported when a document is to be stored
            return set()


def _holds_rows(name: str) -> bool:
    with open(name, "rb") as file:
        kind = recognize(file.read(HEAD_BYTES), name)
    return (recognize(b"", name) if kind == "packed" else kind) in ROWS


def _unpack(path: Path) -> tuple[DocumentText, SentenceVectors]:
    """Read what `DocumentCache.put` wrote; raise ValueError, KeyError or TypeError if it is
    damaged, or of another entry.
    """
    from runnel.models.memory import unpack
    from runnel.models.sentence_vectors import SentenceVectors

    parts = {
        name: value.tobytes()
        for name, value in unpack(path.read_bytes(), "it", None, path.name).items()
    }
    document = DocumentText.from_wire(json.loads(parts["document"]))
    return document, SentenceVectors.from_bytes(parts["sentences"], document.text, "it")
