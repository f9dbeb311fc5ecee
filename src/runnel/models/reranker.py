"""Reranker: how well each document answers a query, read as one text.

With a template that puts the document first (papers B and C), the state after a document can be remembered, and each new
query costs its own tokens only; the scores are those of reading the whole pair. With the query first, its state is
computed once and forked over the documents.
"""

from __future__ import annotations

import itertools
import logging
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import has_no_state
from runnel.backbones.state import State
from runnel.engine import AtPositions, Request
from runnel.errors import InputError, NumericalError
from runnel.models.base import Model, load_model
from runnel.models.embedder import Embedder
from runnel.models.heads import MARK_MATCH, MARK_QUERY, MARKS, MatchScore, VectorRelevance
from runnel.models.memory import Memory, Remembered, block_digest, check_precision
from runnel.models.readers import WeightedMean
from runnel.models.sentence_vectors import SentenceMemory
from runnel.models.vector_ranker import VectorRanker
from runnel.records import Document, Hit, expect_count

log = logging.getLogger("runnel")
BLOCK = 128  # documents that are read together to be remembered, and written to disk together
_STATES_BYTES = 1 << 26  # of states that go on together: more were no faster


@dataclass(frozen=True, eq=False)
class Pair:
    """A query and a document made ready to be read as one row.

    Attributes:
        ids: (T,) int32 token ids, special tokens included.
        cut: how many of the document's tokens were left out for `max_tokens`.
        marks: (T, K) float32, for a `MatchScore` head as all that follows.
        slices: tokens of the document and of what comes from the query on; their weighted means are wanted.
        share: of the query's idf, that which occurs in the document.
    """

    ids: np.ndarray
    cut: int = 0
    marks: np.ndarray | None = None
    slices: tuple[slice, ...] = ()
    share: float = 0.0


class Reranker:
    """Relevance scores of documents for a query. Make one with `Reranker.load`.

    Scores are logits: any real number, higher is better, comparable for one query.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._head = model.head("rerank")
        self._vectors = VectorRanker(model) if isinstance(self._head, VectorRelevance) else None
        self._template = model.templates["rerank" if self._vectors is None else "document"]
        self.document_first = self._template.fields[0] == "document"
        self.remembers = self._vectors is not None or (self.document_first and model.backbone.recurrent)
        self._first_token = getattr(self._head, "pooling", "eos") == "cls"
        self.truncated = 0  # documents cut by `max_tokens` in the last call
        self._matches = isinstance(self._head, MatchScore)
        self._room: State | None = None  # of the last ranking from a memory, for the next one

    @classmethod
    def load(
        cls,
        name: str | Path,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        *,
        template: str | None = None,
    ) -> Reranker:
        """Load a built-in model ("pocket", "pocket-mamba2"), a folder with a rerank head, a published cross-encoder, or a hub id.

        Args:
            template: how a pair is written: "rankmamba" or "ssm-rerankers", as in these papers, "rankmamba-code", as in the
                checkpoints of the former, or "pair", as the tokenizer does by itself (docs/baselines.md). Default: its own.

        Raises:
            CheckpointError: the model is not there or has no rerank head.
            InputError: an unknown template.
        """
        return cls(load_model(name, dtype, device, template=template, job="rerank"))

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.model.save(folder, weights=weights, job="rerank")

    def score(
        self,
        query: str,
        documents: Sequence[str] | Memory | SentenceMemory,
        *,
        progress: Callable[[int], None] | None = None,
        max_tokens: int | None = None,
    ) -> np.ndarray:
        """Return scores (n,) float32 of documents, or of a memory's documents, in their order. Equal texts have equal scores.

        Args:
            documents: texts, or what `remember` has given.
            max_tokens: cut documents so that query and document together keep to this many tokens (never the query), or to
                what the model can read if that is less; default: nothing is cut. The number of cut documents is in
                `truncated`, with a warning.

        Raises:
            InputError: the query is empty or has no tokens, the memory belongs to another model, or a pair is longer than a
                transformer can read.
        """
        if self._vectors is not None:
            return self._vectors.score(query, documents, progress, max_tokens)
        query_ids = self._template.encode_query(self.model.tokenizer, query)
        max_tokens = self.pair_limit(max_tokens)
        self.truncated = 0
        if isinstance(documents, Memory):
            found = np.concatenate([np.zeros(0, np.float32), *self._from_memory(query_ids, documents, progress)])
            return found[_first_places([text for _, text in documents.entries()])]
        if isinstance(documents, SentenceMemory):
            raise InputError("this memory was made by another model; remember the documents again with this one")
        texts = [text for _, text in _named(documents)]
        requests = self._from_texts(query_ids, Counter(texts), max_tokens)
        scores = {
            text: self._score(result.get())
            for text, result in zip(dict.fromkeys(texts), self.model.engine.map(requests, progress), strict=True)
        }
        if self.truncated:
            log.warning("%d documents were cut to keep to %s tokens", self.truncated, max_tokens)
        return np.array([scores[text] for text in texts], dtype=np.float32)

    def score_pairs(self, pairs: Iterable[Pair]) -> np.ndarray:
        """Scores float32 (n,) of pairs made by `pair`, of one query or of several."""
        results = self.model.engine.map(map(self._whole, pairs))
        return np.array([self._score(result.get()) for result in results], dtype=np.float32)

    def pair_limit(self, max_tokens: int | None) -> int | None:
        """The tokens that a pair is cut to for `max_tokens`: as many, or what a transformer can read if that is less."""
        longest = self.model.backbone.longest_text
        return max_tokens if max_tokens is None or longest is None else min(max_tokens, longest)

    def rank(
        self,
        query: str,
        documents: Sequence[str] | Mapping[str, str] | Sequence[Document] | Memory | SentenceMemory,
        top_k: int | None = None,
        *,
        progress: Callable[[int], None] | None = None,
        max_tokens: int | None = None,
    ) -> list[Hit]:
        """Documents best first, ties in their given order.

        Args:
            documents: strings (ids are their places "0", "1", ...), {id: text}, `Document`s, or a `Memory`.
            top_k: how many to return; default all.
            max_tokens: as in `score`; remembered documents are whole.
        """
        if top_k is not None:
            expect_count(top_k, "top_k")
        if isinstance(documents, Memory | SentenceMemory):
            pairs = documents.entries()
            scores = self.score(query, documents, progress=progress)
        else:
            pairs = _named(documents)
            scores = self.score(query, [text for _, text in pairs], progress=progress, max_tokens=max_tokens)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Hit(pairs[i][0], float(scores[i]), rank, pairs[i][1]) for rank, i in enumerate(order, start=1)]

    def remember(
        self,
        documents: Iterable[str] | Mapping[str, str] | Iterable[Document],
        path: str | Path | None = None,
        dtype: str = "int8",
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Memory | SentenceMemory:
        """Read documents once and keep their states for any number of queries.

        Args:
            path: a folder, for recurrent models; default: in RAM. Documents already remembered there, in the same order, are not
                read again, so an interrupted call can simply be repeated.
            dtype: "int8" (one scale per row of the state), "bf16" or "fp32". With "fp32" scores differ from whole pairs'
                by no more than whole pairs read in other steps do: on `pocket-mamba2` up to 2e-6 in fp32, 0.012 in bf16 and
                0.034 in 8 bits, which round every activation, where scores span 3.

        Raises:
            InputError: the model's template puts the query first, so nothing can be remembered; or an unknown dtype.
            StateError: the folder holds a memory of another model or precision; or the model is a transformer, without a state.
            StoreBusy: another process is writing in the folder, and the documents are not all there yet.
        """
        if self._vectors is not None:
            return self._vectors.remember(_named(documents), progress, path)
        if not self.model.backbone.recurrent:
            raise has_no_state(self.model.backbone.title)
        if not self.document_first:
            raise InputError(
                "this model's template puts the query first, so a document's state depends on it; nothing can be remembered"
            )
        precision = check_precision(dtype)
        fingerprint = self.model.backbone.fingerprint()
        memory = Memory(precision, fingerprint) if path is None else Memory.at(Path(path), precision, fingerprint)
        source = iter(_named_stream(documents))
        blocks = 0
        try:
            while batch := list(itertools.islice(source, BLOCK)):
                digest = block_digest(batch)
                if memory.lacks(blocks, digest):
                    memory.truncate(blocks)
                    memory.add([*self._remember(batch, progress)], digest)
                blocks += 1
            memory.truncate(blocks)
        finally:
            memory.release()
        return memory

    def shares(self, embedder: Embedder) -> bool:
        """Whether the embedder's pass over a document reads what this remembers of it, so that one pass does for both."""
        mine, other = self._template, embedder.model.templates["document"]
        cut = any((mine.max_tokens, mine.max_document_tokens, other.max_tokens, other.max_document_tokens))
        same_model = embedder.model is self.model and embedder.pooling == "mean" and not self.model.prompts.get("document")
        return self.remembers and same_model and not cut and mine.before("query").parts == other.parts

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _remember(self, batch: Sequence[tuple[str, str]], progress: Callable[[int], None] | None) -> Iterator[Remembered]:
        tokenizer, before = self.model.tokenizer, self._template.before("query")
        encoded = [e.ids for e in before.encode_batch(tokenizer, "document", [text for _, text in batch])]
        requests = []
        for ids in encoded:
            rendered = before.render(tokenizer, document=ids)
            reader = WeightedMean(rendered.ids, self.model.weight, [slice(rendered.slices["document"].start, len(rendered.ids))])
            requests.append(Request(rendered.ids, reader=reader, keep_state=True))
        for (name, text), ids, result in zip(batch, encoded, self.model.engine.map(requests, progress), strict=True):
            mean = result.get().mean(0)
            assert result.state is not None
            yield Remembered(name, text, result.state, mean, np.unique(ids))

    def _from_memory(self, query_ids: np.ndarray, memory: Memory, progress: Callable[[int], None] | None) -> Iterator[np.ndarray]:
        """Scores of some documents at a time: all go on with the same tokens, so their states are the rows of one step."""
        if memory.fingerprint != self.model.backbone.fingerprint():
            raise InputError("this memory was made by another model; remember the documents again with this one")
        rendered = self._template.starting_at("query").render(self.model.tokenizer, query=query_ids)
        ids, start = torch.from_numpy(rendered.ids.astype(np.int64)), rendered.slices["query"].start
        backbone = self.model.backbone
        rows = max(1, min(self.model.engine.step_tokens // len(ids), _STATES_BYTES // backbone.state_bytes, len(memory)))
        # Memory that is new to the process costs as much as filling it, so it is kept; a ranking in another thread makes its own.
        room, self._room = self._room, None
        if room is None or len(room) < rows:
            room = backbone.new_state(rows)
        for batch in memory.batches(rows, room, backbone.hidden_size):
            if not self._matches or self.model.features is None:
                hidden = self._go_on(ids, batch.state, None)[:, 0 if self._first_token else -1]
                values: tuple[Tensor, ...] = (hidden,)
            else:
                found = [self._match(len(ids), start, query_ids, document) for document in batch.unique_ids]
                marks, shares = (np.stack(column) for column in zip(*found, strict=True))
                hidden = self._go_on(ids, batch.state, torch.from_numpy(marks).flatten(0, 1))
                weight = self.model.weight[ids[start:]]
                mean = (weight @ hidden[:, start:]) / weight.sum()
                values = (mean, hidden[:, -1], batch.means, torch.from_numpy(shares)[:, None].float())
            with torch.inference_mode():
                scores = self._head(*values).numpy()
            if not np.isfinite(scores).all():
                raise NumericalError("a score is NaN or infinite; the weights or what is remembered may be damaged")
            if progress is not None:
                progress(len(batch.state) * len(ids))
            yield scores.astype(np.float32)
        self._room = room

    def _go_on(self, ids: Tensor, state: State, marks: Tensor | None) -> Tensor:
        """Hidden vectors (n, T, D) of the same ids (T,) behind each of n states, which may be overwritten; marks (n T, K)."""
        engine, rows = self.model.engine, torch.arange(len(state))
        added = None if marks is None or engine.mark_vectors is None else marks @ engine.mark_vectors
        parts = []
        for start in range(0, len(ids), engine.step_tokens):  # only where one document's query is longer than a step
            piece = ids[start : start + engine.step_tokens]
            some = added if added is None or len(piece) == len(ids) else added[start : start + len(piece)]
            lengths = torch.arange(0, (len(rows) + 1) * len(piece), len(piece))
            ends = rows if start + len(piece) < len(ids) else torch.full_like(rows, -1)
            hidden = self.model.backbone.step(piece.repeat(len(rows)), lengths, state, rows, ends, some)
            parts.append(hidden.unflatten(0, (len(rows), len(piece))))
        return torch.cat(parts, dim=1)

    def _from_texts(self, query_ids: np.ndarray, documents: Mapping[str, int], max_tokens: int | None) -> Iterator[Request]:
        """Yield a request for each text; `documents` says how many of the documents have it."""
        tokenizer = self.model.tokenizer
        start: State | None = None
        template = self._template
        if not self.document_first and self.model.backbone.recurrent:
            prefix = template.before("document").render(tokenizer, query=query_ids).ids
            start = next(self.model.engine.map([Request(prefix, keep_state=True)])).state
            template = template.starting_at("document")
            max_tokens = max_tokens and max_tokens - len(prefix)
        for text, count in documents.items():
            ids = template.encode(tokenizer, "document", text).ids
            if start is None:
                pair = self.pair(query_ids, ids, max_tokens)
                self.truncated += count * (pair.cut > 0)
                yield self._whole(pair)
                continue
            rendered = template.render(tokenizer, document=ids, max_tokens=max_tokens)
            self.truncated += count * (rendered.cut > 0)
            yield self._plain(rendered.ids, start)

    def pair(self, query_ids: np.ndarray, document_ids: np.ndarray, max_tokens: int | None = None) -> Pair:
        """A pair to be read whole, from the ids that the template's `encode` gives; `max_tokens` is what `pair_limit` gives."""
        rendered = self._template.render(self.model.tokenizer, query=query_ids, document=document_ids, max_tokens=max_tokens)
        if not self._matches or self.model.features is None:
            return Pair(rendered.ids, rendered.cut)
        place, tail = rendered.slices["document"], slice(rendered.slices["query"].start, len(rendered.ids))
        marks, share = self._match(len(rendered.ids), tail.start, query_ids, np.unique(rendered.ids[place]))
        return Pair(rendered.ids, rendered.cut, marks, (slice(place.start, tail.start), tail), share)

    def _match(self, tokens: int, start: int, query_ids: np.ndarray, document_ids: np.ndarray) -> tuple[np.ndarray, float]:
        """Marks (tokens, K) of a row whose query starts at `start`, and the share of its idf that the document has.

        `document_ids` are distinct and sorted.
        """
        assert self.model.features is not None
        idf = self.model.features.idf.cpu().numpy()
        marks = np.zeros((tokens, MARKS), dtype=np.float32)
        place = slice(start, start + len(query_ids))
        marks[place, MARK_QUERY] = 1
        there = _among(query_ids, document_ids)
        marks[place, MARK_MATCH] = idf[query_ids] * there
        terms, first = np.unique(query_ids, return_index=True)
        return marks, float(idf[terms[there[first]]].sum() / (idf[terms].sum() + 1e-6))

    def _whole(self, pair: Pair) -> Request:
        """A request for a pair that is read from its first token."""
        if pair.marks is None:
            return self._plain(pair.ids, None)
        reader = WeightedMean(pair.ids, self.model.weight, list(pair.slices))
        return Request(pair.ids, marks=pair.marks, reader=_Pair(reader, pair.share))

    def _plain(self, ids: np.ndarray, state: State | None) -> Request:
        """A request for the hidden vector that a head without features scores."""
        return Request(ids, state=state, reader=_Pair(AtPositions([0 if self._first_token else len(ids) - 1])))

    def _score(self, pair: _Pair) -> float:
        with torch.inference_mode():
            if isinstance(pair.reader, AtPositions):
                return float(self._head(pair.reader.result())[0])
            mean, end, other = pair.reader.mean(-1), pair.reader.end, pair.reader.mean(0)
            assert end is not None
            return float(self._head(mean[None], end[None], other[None], torch.tensor([[pair.share]]))[0])


class _Pair:
    """A pair on its way through the engine: the reader, and the share of query idf that matches."""

    def __init__(self, reader: AtPositions | WeightedMean, share: float = 0.0) -> None:
        self.reader, self.share = reader, share
        self.read = reader.read

    def result(self) -> _Pair:
        return self


def _first_places(texts: Sequence[str]) -> list[int]:
    """Return for each text where it first occurs, so that equal texts tie; an unknown text ("") keeps its own place."""
    places: dict[str, int] = {}
    return [places.setdefault(text, place) if text else place for place, text in enumerate(texts)]


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(n,) bool: which values are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    return known[np.searchsorted(known, values).clip(max=len(known) - 1)] == values


def _named_stream(documents: Iterable[str] | Mapping[str, str] | Iterable[Document]) -> Iterator[tuple[str, str]]:
    if isinstance(documents, str | bytes) or not isinstance(documents, Iterable):
        raise InputError(
            f"documents are {reprlib.repr(documents)}; expected several: a list of texts or Documents, or a mapping from ids to "
            "texts"
        )
    items: Iterable[tuple[str, Any]]
    items = documents.items() if isinstance(documents, Mapping) else ((str(place), item) for place, item in enumerate(documents))
    for name, item in items:
        document = item if isinstance(item, Document) else Document(name, item)
        yield document.id, document.text


def _named(documents: Iterable[str] | Mapping[str, str] | Iterable[Document]) -> list[tuple[str, str]]:
    return list(_named_stream(documents))
