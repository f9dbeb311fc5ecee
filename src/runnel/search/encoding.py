"""Encode documents as rows of an index: one pass of the model gives the vectors of a document and
of its passages.

An index may also remember documents: with each it stores a memory, so that a search can score the
document without reading it again. Three ways to make it, as the models allow:

    vectors of its sentences     by models that find sentences with vectors, always, in the same
                                 pass
    the reranker's, in one pass  if `remember` is set, and the reranker reads documents as the
                                 embedder does (`Reranker.shares`)
    the reranker's, in a second  if `remember` is set, for the other rerankers

    DocumentEncoder   `new_rows` checks documents and leaves out unchanged ones; `encode` reads the
                      rest, in the groups that `batches` makes, and returns `EncodedDocuments`
    new_settings      the settings of a new index
    expect_model      refuses a model whose vectors of fixed texts (the probe) are not the stored
                      ones

n  texts or passages   d  width of vectors
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from runnel.batching import grouped
from runnel.checks import expect_count, utf8
from runnel.errors import InputError, StoreError
from runnel.models.embedder import Embedder
from runnel.models.precision import truncated
from runnel.models.reading import ReadDocument, read_documents
from runnel.models.reranker import Reranker, cannot_remember_error
from runnel.models.sentence_retriever import SentenceRetriever, sentence_scorer
from runnel.records import Document, Places
from runnel.request import Progress, TokenCount
from runnel.search.files import leave_out
from runnel.search.filters import typed
from runnel.search.records import (
    WHOLE,
    ContentHashes,
    DocumentRow,
    FieldType,
    IndexSettings,
    PassageRow,
    content_hash,
)
from runnel.text.sentences import check_language

_BATCH_CHARS = 2_000_000  # read and committed together: a few thousand passages
_BATCH_DOCUMENTS = 2000
# in place of `_BATCH_DOCUMENTS` for a reranker's memories: the state of a recurrent model, which
# is large however short the document is
_BATCH_STATES = 250
_PASSAGE_TOKENS = 256
_PROBES = (
    "A river runs to the sea.",
    "SELECT name FROM users WHERE id = 7;",
    "Die Katze schläft, während es regnet.",
)
# the least cosine of probe vectors; the same weights in 8 bits give more than 0.9999
_SAME_MODEL = 0.999


@dataclass(slots=True)
class EncodedDocuments:
    """The rows of documents that were read together."""

    documents: list[DocumentRow] = field(default_factory=list)
    passages: list[PassageRow] = field(default_factory=list)
    # document id -> why it could not be read; it has no rows
    failed: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    # tokens that the model read: fewer if text was appended to a document, which it then continues
    tokens_read: int = 0


class DocumentEncoder:
    """A reader of documents for an index at `place`. `embedder` is the given one, with vectors as
    wide as the index's.

    Raises:
        StoreError: the settings of the index belong to another model.
    """

    def __init__(self, embedder: Embedder, settings: IndexSettings, place: str) -> None:
        if settings.dimension < embedder.dimension:  # the index was made with `truncate_dim`
            embedder = Embedder(embedder.model, truncate_dim=settings.dimension)
        expect_model(embedder, settings, place)
        self.settings = settings
        self.embedder = embedder
        # the three kinds of memory of the module's docstring; `_reranker` is None for the first,
        # and `_one_pass` says whether the embedder's pass makes the memory
        sentences = remembers_sentences(embedder)
        self._embedder = _for_sentences(embedder) if sentences else embedder
        self._reranker = reranker_of(embedder) if settings.remember and not sentences else None
        self._one_pass = sentences or (
            self._reranker is not None and self._reranker.shares(embedder)
        )

    def row(self, document: Document | DocumentRow) -> DocumentRow:
        """Check a document (a DocumentRow comes from a file) and return its row, without the
        model's outputs.
        """
        name = f"document {document.id!r}"
        metadata = dict(document.metadata)
        if isinstance(document, Document):
            title = document.title or metadata.get("title")
            document = DocumentRow(
                document.id,
                document.text,
                "" if title is None else str(title),
                "",  # no file,
                "",  # and no hash of it
                "",  # the hash of its content: set below
                0,  # tokens: counted when it is read
                metadata,
            )
        for field_name, kind in self.settings.fields.items():
            if metadata.get(field_name) is not None:
                metadata[field_name] = typed(field_name, metadata[field_name], kind)
        try:
            problem = "".join(
                f"the key {key!r} is no text" for key in metadata if not isinstance(key, str)
            )
            stored = json.dumps(metadata, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            problem = problem or str(error)
        if problem:
            raise InputError(f"{name} has metadata that JSON cannot hold: {problem}")
        for what, text in {
            "id": document.id,
            "text": document.text,
            "title": document.title,
            "metadata": stored,
        }.items():
            utf8(text, f"{name}: its {what}")
        row = replace(document, metadata=metadata)
        return replace(row, content_hash=content_hash(row))

    def new_rows(
        self,
        documents: Iterable[Document | DocumentRow],
        known: Mapping[str, ContentHashes],
        failed: dict[str, str],
        unchanged: list[str],
    ) -> Iterator[DocumentRow]:
        """Yield rows of documents that are new or changed; ids of the others go to `unchanged` or,
        logged, to `failed`.
        """
        seen: set[str] = set()
        for document in documents:
            if not isinstance(document, Document | DocumentRow):
                raise InputError(
                    f"expected runnel.Document objects, got {type(document).__name__}:"
                    f" {document!r:.80}"
                )
            try:
                if document.id in seen:
                    raise InputError(
                        f"another document of this call has the id {document.id!r}; only the first"
                        " was added"
                    )
                row = self.row(document)
            except InputError as error:
                leave_out(failed, document.id, str(error))
                continue
            seen.add(row.id)
            if row.id in known and known[row.id].content_hash == row.content_hash:
                unchanged.append(row.id)
            else:
                yield row

    @property
    def batch_documents(self) -> int:
        """The most documents that are read and committed together."""
        return _BATCH_DOCUMENTS if self._reranker is None else _BATCH_STATES

    def encode(
        self,
        rows: Sequence[DocumentRow],
        saved: Sequence[bytes | None] | None = None,
        progress: Progress | None = None,
    ) -> EncodedDocuments:
        """Read documents together. `saved`: for each, the state of the model after an earlier,
        shorter version of its text, from which reading goes on, or None (`models/reading.py`).
        """
        out = EncodedDocuments()
        count = TokenCount(progress)
        for row, read in zip(
            rows, self._read(rows, saved or [None] * len(rows), count), strict=True
        ):
            if isinstance(read, str):
                leave_out(out.failed, row.id, read)
                continue
            memory = None if read.memory is None else read.memory.to_bytes()
            out.documents.append(replace(row, tokens=read.tokens, saved=read.saved, memory=memory))
            out.passages += _passages(row, read)
            out.tokens += read.tokens
            out.tokens_read += read.tokens_read
        if self._reranker is not None and not self._one_pass:  # the second pass
            remembered = self._reranker.remember(
                {row.id: row.text for row in out.documents}, progress=count.part()
            )
            out.documents = [
                replace(row, memory=remembered[row.id].to_bytes()) for row in out.documents
            ]
        return out

    def _read(
        self, rows: Sequence[DocumentRow], saved: Sequence[bytes | None], count: TokenCount
    ) -> list[ReadDocument | str]:
        """Read documents; for one that cannot be read, return the reason."""
        size = self.settings.passage_tokens
        documents = [row.document() if row.blocks else row.text for row in rows]
        options = {
            "passage_tokens": size,
            "remember": self._one_pass,
            "language": self.settings.language,
            "progress": count.part(totals=True),
        }
        try:
            return list(read_documents(self._embedder, documents, saved, **options))
        except InputError as error:
            if len(rows) == 1:
                return [str(error)]
        half = len(rows) // 2  # isolate the unreadable document; keep the others together
        return self._read(rows[:half], saved[:half], count) + self._read(
            rows[half:], saved[half:], count
        )


def batches(rows: Iterable[DocumentRow], most: int) -> Iterator[list[DocumentRow]]:
    """Yield rows in the groups that are read and committed together, of at most
    `most` documents.
    """
    return grouped(rows, lambda row: len(row.text), _BATCH_CHARS, most)


def new_settings(
    embedder: Embedder,
    fields: Mapping[str, FieldType] | None = None,
    passage_tokens: int | None = None,
    remember: bool = False,
    language: str = "auto",
) -> IndexSettings:
    """Return the settings of a new index. Arguments: as for `Index.create`."""
    check_language(language)
    types = get_args(FieldType)
    valid = isinstance(fields, Mapping) and all(
        str(name).isidentifier() and kind in types for name, kind in fields.items()
    )
    if fields is not None and not valid:
        raise InputError(
            f"fields are {fields!r}; expected identifiers with one of the types {', '.join(types)},"
            ' such as {"year": "int"}'
        )
    sentences = remembers_sentences(embedder)
    block = (_for_sentences(embedder) if sentences else embedder).reader.block
    if passage_tokens is not None:
        expect_count(passage_tokens, "passage_tokens")
    if block is not None and passage_tokens not in (None, block):
        raise InputError(
            f"{embedder.model.source} reads documents in passages of {block} tokens, got"
            f" passage_tokens={passage_tokens}; omit passage_tokens"
        )
    size = block or passage_tokens or _PASSAGE_TOKENS
    if remember and not sentences:
        reranker = reranker_of(embedder)
        if reranker is None or not reranker.remembers:
            raise cannot_remember_error(embedder.model)
    probe = _probe(embedder).astype(float).round(6).tolist()
    return IndexSettings(
        embedder.model.source,
        probe,
        embedder.dimension,
        size,
        dict(fields or {}),
        remember or sentences,
        language,
    )


def remembers_sentences(embedder: Embedder) -> bool:
    """Return whether indexes of this model store a vector of every sentence, to answer questions
    without reading again.
    """
    # a recurrent model finds sentences too, but only with the query before the document
    return embedder.model.finds_sentences and sentence_scorer(embedder.model).remembers


def _for_sentences(embedder: Embedder) -> Embedder:
    """Return an embedder of the same vectors whose model reads passages and their sentences."""
    return Embedder(embedder.model.for_sentences, truncate_dim=embedder.dimension)


def reranker_of(embedder: Embedder) -> Reranker | None:
    """Return the reranker of the same model, if it has one."""
    return Reranker(embedder.model) if "rerank" in embedder.model.heads else None


def _probe(embedder: Embedder) -> np.ndarray:
    """Return the unit vectors (n, d) of fixed texts. If the index stores vectors of sentences, as
    many follow that a text's sentence vectors give: their sum, of unit length and cut to d.
    """
    probe = embedder.encode(_PROBES)
    if not remembers_sentences(embedder):
        return probe
    sums = np.stack(
        [vectors.sums().sum(0) for vectors in SentenceRetriever(embedder.model).remember(_PROBES)]
    )
    return np.concatenate(
        [probe, truncated(sums / np.linalg.norm(sums, axis=1, keepdims=True), embedder.dimension)]
    )


def expect_model(embedder: Embedder, settings: IndexSettings, place: str) -> None:
    """Raise StoreError unless a model produces the vectors stored at `place`."""
    probe = _probe(embedder)
    stored = np.array(settings.probe)
    same = probe.shape == stored.shape and bool((probe * stored).sum(1).min() >= _SAME_MODEL)
    if same and embedder.dimension == settings.dimension:
        return
    raise StoreError(
        f"{place} was made with the model {settings.model!r}; {embedder.model.source!r}, as it is"
        " now, gives other vectors. Use that model with the same options (pooling, truncate_dim),"
        " or index the documents again in another place"
    )


def _passages(row: DocumentRow, read: ReadDocument) -> list[PassageRow]:
    """Return the rows of a document's passages, and last the row of the whole document."""
    places = Places(row.blocks)
    rows = []
    for number, ((start, end), vector) in enumerate(
        zip(read.spans.tolist(), read.passages, strict=True)
    ):
        page, headings = places.at(start)
        rows.append(
            PassageRow(
                row.id, number, start, end, row.text[start:end], vector, page, " > ".join(headings)
            )
        )
    return [*rows, PassageRow(row.id, WHOLE, 0, len(row.text), "", read.vector)]
