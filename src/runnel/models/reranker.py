"""Reranker: a score of how well each document answers a query; both are read as one text (papers B and C).

With a template that puts the document first, the state after a document can be remembered. With the query first, its state is
computed once and forked over the documents.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from runnel.backbones.base import has_no_state
from runnel.backbones.state import State
from runnel.errors import InputError, NumericalError, StateError
from runnel.models.base import Model, load_model
from runnel.models.embedder import Embedder
from runnel.models.heads import MARK_MATCH, MARK_QUERY, MARKS, WITHOUT_TOKENS
from runnel.models.items import Item, mark, unit_scores
from runnel.models.memory import DocumentState, Memory, Precision, check_precision, remember_in
from runnel.models.sentence_vectors import SentenceVectors, VectorScorer, relevance_features, sentence_tokens
from runnel.ops.backend import inference
from runnel.records import Document, Hit, expect_count, expect_loaded, expect_series
from runnel.request import Request, Result, total_progress
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.work import top

_Text = TypeVar("_Text", str, "str | DocumentText")
log = logging.getLogger("runnel")
_TOGETHER = 128  # documents tokenized together
_STATES_BYTES = 1 << 26  # of states continued in one step; more were no faster


class Reranker:
    """A model that scores the relevance of documents for a query. Make one with `Reranker.load`.

    Scores are logits: any real number, higher is better, comparable for one query.
    """

    def __init__(self, model: Model) -> None:
        expect_loaded(model, "Reranker")
        self.model = model
        self._head = model.head("rerank")
        self._stored = VectorScorer(model, passages=True) if self._head.stored else None
        self._template = model.templates["rerank" if self._stored is None else "document"]
        self.document_first = self._template.fields[0] == "document"
        self.remembers = self._stored is not None or (self.document_first and model.backbone.recurrent)
        self.truncated = 0  # documents cut by `max_tokens` in the last call
        self._idf = np.zeros(0, np.float32) if model.features is None else model.features.idf.cpu().numpy()
        self._room: State | None = None  # allocated by the last ranking from a memory, reused by the next

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
                former's checkpoints, or "pair", as the tokenizer does by default (docs/models.md). Default: the model's.

        Raises:
            CheckpointError: the model is missing or has no rerank head.
            InputError: the template is unknown.
        """
        return cls(load_model(name, dtype, device, template=template, job="rerank"))

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.model.save(folder, weights=weights, job="rerank")

    def score(
        self,
        query: str,
        documents: Sequence[str | DocumentText] | Memory,
        *,
        progress: Callable[[int], None] | None = None,
        max_tokens: int | None = None,
    ) -> np.ndarray:
        """Return scores (n,) float32 of documents, or of a memory's documents, in their order. Equal texts have equal scores.

        A document without a token, such as "" or U+200B, is not ranked by the model: its score is -700, below any other.

        Args:
            documents: texts, or the result of `remember`.
            max_tokens: cut documents (never the query) so that query and document together have at most this many tokens, or
                as many as the model can read if that is less; default: nothing is cut. The number of cut documents is in
                `truncated`, with a warning.

        Raises:
            InputError: the query is empty or has no tokens, the memory belongs to another model, or a pair is longer than a
                transformer can read.
        """
        if isinstance(documents, Memory) and not documents.is_of(self.model.backbone):
            raise InputError("this memory was made by another model; remember the documents again with this one")
        given: Any = documents if isinstance(documents, Memory) else [text for _, text in _texts(documents)]
        if self._stored is not None:
            if max_tokens is not None:
                source = self.model.source
                raise InputError(f"{source} reads documents of any length, in passages; do not give max_tokens (--max-tokens)")
            return self._score_stored(self._stored, query, given, progress)
        query_ids = self._template.encode_query(self.model.tokenizer, query)
        max_tokens = self.pair_limit(max_tokens)
        self.truncated = 0
        if isinstance(given, Memory):
            remembered = np.concatenate([np.zeros(0, np.float32), *self._from_memory(query_ids, given, progress)])
            return remembered[_first_places([text for _, text in given.entries()])]
        texts = list(dict.fromkeys(given))
        encoded = self._template.encode_batch(self.model.tokenizer, "document", texts)
        full = {text: one.ids for text, one in zip(texts, encoded, strict=True) if len(one)}
        results = self.model.engine.map(self._from_texts(query_ids, full, Counter(given), max_tokens), progress)
        scores = dict.fromkeys(texts, WITHOUT_TOKENS)
        scores |= {text: self._score(result.get()) for text, result in zip(full, results, strict=True)}
        if self.truncated:
            log.warning("%d documents were cut to fit into %s tokens", self.truncated, max_tokens)
        return np.array([scores[text] for text in given], dtype=np.float32)

    def score_pairs(self, pairs: Iterable[Item]) -> np.ndarray:
        """Return scores float32 (n,) of pairs made by `pair`, for one query or several."""
        pairs = list(pairs)
        results = self.model.engine.map(pair.request for pair in pairs)
        scores = np.array([self._score(result.get()) for result in results], dtype=np.float32)
        return np.where([pair.empty for pair in pairs], np.float32(WITHOUT_TOKENS), scores)

    def pair_limit(self, max_tokens: int | None) -> int | None:
        """Return the tokens a pair is cut to: `max_tokens`, or a transformer's limit if that is less; None: no cut."""
        longest = self.model.backbone.longest_text
        return max_tokens if max_tokens is None or longest is None else min(max_tokens, longest)

    def rank(
        self,
        query: str,
        documents: Sequence[str | DocumentText] | Mapping[str, str | DocumentText] | Sequence[Document] | Memory,
        top_k: int | None = None,
        *,
        progress: Callable[[int], None] | None = None,
        max_tokens: int | None = None,
    ) -> list[Hit]:
        """Rank documents, best first, ties in the given order.

        Args:
            documents: strings (ids are their positions "0", "1", ...), {id: text}, `Document`s, or a `Memory`.
            top_k: how many to return; default: all.
            max_tokens: as in `score`; remembered documents are not cut.
        """
        if top_k is not None:
            expect_count(top_k, "top_k")
        if isinstance(documents, Memory):
            pairs = documents.entries()
            scores = self.score(query, documents, progress=progress)
        else:
            pairs = list(_texts(documents))
            scores = self.score(query, [text for _, text in pairs], progress=progress, max_tokens=max_tokens)
        best = enumerate(top(scores, top_k), start=1)
        return [Hit(pairs[i][0], float(scores[i]), rank, pairs[i][1]) for rank, i in best]

    def remember(
        self,
        documents: Iterable[str | DocumentText] | Mapping[str, str | DocumentText] | Iterable[Document],
        path: str | Path | None = None,
        dtype: str = "int8",
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Memory:
        """Read documents once and keep their states for any number of queries.

        Args:
            path: a folder; default: RAM. Texts already remembered there are not read again, so an interrupted call can be
                repeated.
            dtype: of a recurrent model's states: "int8" (one scale per row), "bf16" or "fp32". With "fp32", scores differ from
                the scores of whole pairs no more than those do when read in other steps.

        Raises:
            InputError: the model's template puts the query first, so nothing can be remembered; two documents have one id; or
                the dtype is unknown.
            StateError: the model is a transformer, without a state.
        """
        named, precision = dict(_distinct(_named(documents))), check_precision(dtype)
        if self._stored is None and not self.model.backbone.recurrent:
            raise has_no_state(self.model.backbone.title)
        if self._stored is None and not self.document_first:
            raise InputError(
                "this model's template puts the query first, so a document's state depends on it; nothing can be remembered"
            )
        if path is None:
            read = self._remembered(named.values(), precision, progress)
            return Memory(self.model.backbone, dict(zip(named, read, strict=True)))
        load = (DocumentState if self._stored is None else SentenceVectors).load
        texts = {text_of(document): document for document in named.values()}

        def read_texts(missing: Iterable[str]) -> Iterator[DocumentState | SentenceVectors]:
            return self._remembered((texts[text] for text in missing), precision, progress)

        names = {name: text_of(document) for name, document in named.items()}
        return remember_in(Path(path), names, self.model.backbone, precision, read_texts, load)

    def shares(self, embedder: Embedder) -> bool:
        """Return whether the embedder and `remember` read a document in the same way, so that one pass serves both."""
        mine, other = self._template, embedder.model.templates["document"]
        cut = any((mine.max_tokens, mine.max_document_tokens, other.max_tokens, other.max_document_tokens))
        same_model = embedder.model is self.model and embedder.pooling == "mean" and not self.model.prompts.get("document")
        return self.remembers and same_model and not cut and mine.before("query").parts == other.parts

    # ---- documents read into sentence vectors ----------------------------------------------------------------------------

    def _remembered(
        self, documents: Iterable[str | DocumentText], precision: Precision, progress: Callable[[int], None] | None
    ) -> Iterator[DocumentState | SentenceVectors]:
        if self._stored is not None:
            tokens = sentence_tokens(self.model, self._stored.template, documents)
            yield from self._stored.read(tokens, total_progress(progress))
            return
        texts = map(text_of, documents)
        while batch := list(itertools.islice(texts, _TOGETHER)):
            yield from self._states(batch, precision, progress)

    @inference()
    def _score_stored(
        self, scorer: VectorScorer, query: str, documents: Any, progress: Callable[[int], None] | None
    ) -> np.ndarray:
        """Return the scores of texts or of a memory; equal texts are read once."""
        names: list[str] = list(documents.documents if isinstance(documents, Memory) else documents)
        if not names:
            return np.zeros(0, dtype=np.float32)
        memory = documents if isinstance(documents, Memory) else self.remember({text: text for text in names}, progress=progress)
        read, words, backbone = scorer.read_query(query), self.model.words, self.model.backbone
        prompt, features, empty = len(scorer.prompts["document"]), {}, set()
        for name in memory.documents:
            document = memory[name]
            assert isinstance(document, SentenceVectors)
            features[name] = relevance_features(read, document, words, backbone, prompt)
            empty |= set() if len(document.ids) else {name}
        scores: np.ndarray = self._head(torch.from_numpy(np.stack([features[name] for name in names]))).numpy()
        return np.where([name in empty for name in names], np.float32(WITHOUT_TOKENS), scores)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _states(
        self, texts: Sequence[str], precision: Precision, progress: Callable[[int], None] | None
    ) -> Iterator[DocumentState]:
        tokenizer, before = self.model.tokenizer, self._template.before("query")
        requests = []
        for text, encoded in zip(texts, before.encode_batch(tokenizer, "document", texts), strict=True):
            rendered = before.render(tokenizer, document=encoded.ids)
            ranges = np.array([[rendered.slices["document"].start, len(rendered.ids)]])
            requests.append(Request(rendered.ids, ranges=ranges, keep_state=True, tag=(text, np.unique(encoded.ids))))
        for result in self.model.engine.map(requests, progress):
            mean, (text, unique) = result.get().means[0], result.tag
            assert result.state is not None
            yield DocumentState.of(text, result.state, mean, unique, precision)

    def _from_memory(self, query_ids: np.ndarray, memory: Memory, progress: Callable[[int], None] | None) -> Iterator[np.ndarray]:
        """Yield scores in batches of documents: all continue with the same tokens, so their states are the rows of one step."""
        rendered = self._template.starting_at("query").render(self.model.tokenizer, query=query_ids)
        ids, start, backbone = rendered.ids, rendered.slices["query"].start, self.model.backbone
        rows = max(1, min(self.model.engine.step_tokens // len(ids), _STATES_BYTES // backbone.state_bytes, len(memory)))
        # Allocating memory costs as much as filling it, so it is kept; a concurrent ranking in another thread allocates its own.
        room, self._room = self._room, None
        if room is None or len(room) < rows:
            room = backbone.new_state(rows)
        names = iter(memory.documents)
        while documents := [cast(DocumentState, memory[name]) for name in itertools.islice(names, rows)]:
            scores = self._score_batch(documents, room, ids, start, query_ids)
            if not np.isfinite(scores).all():
                raise NumericalError("a score is NaN or infinite; the weights or the remembered documents may be damaged")
            if progress is not None:
                progress(len(documents) * len(ids))
            scores[[not len(document.ids) for document in documents]] = WITHOUT_TOKENS
            yield scores.astype(np.float32)
        self._room = room

    @inference()
    def _score_batch(
        self, documents: Sequence[DocumentState], room: State, ids: np.ndarray, start: int, query_ids: np.ndarray
    ) -> np.ndarray:
        """Return scores (n,) of documents continued, in `room`, with `ids` (T,), in which the query starts at `start`."""
        engine, count = self.model.engine, len(documents)
        state = State({name: tensor[:count] for name, tensor in room.tensors.items()}, room.tokens[:count])
        try:
            for place, document in enumerate(documents):
                document.fill(state, place)
            means = torch.stack([document.mean for document in documents]).view(count, self.model.backbone.hidden_size)
        except (KeyError, IndexError, RuntimeError) as error:
            raise StateError("a remembered document does not fit this model's shapes; remember or index it again") from error
        if self._head.matches:
            matches = [self._marks(ids, start, query_ids, document.ids) for document in documents]
            hidden = engine.extend(state, ids, np.stack([marks for marks, _ in matches]))
            weight = self.model.weight[torch.from_numpy(ids[start:].astype(np.int64))]
            mean = (weight @ hidden[:, start:]) / weight.sum()
            values = [mean, hidden[:, -1], means, torch.from_numpy(np.concatenate([share for _, share in matches]))]
        elif self._head.state is not None:
            engine.extend(state, ids, keep_states=True)
            values = [state[self._head.state]]
        else:
            values = [engine.extend(state, ids)[:, 0 if self._head.pooling == "cls" else -1]]
        scores: np.ndarray = self._head(*values).numpy()
        return scores

    def _from_texts(
        self, query_ids: np.ndarray, documents: Mapping[str, np.ndarray], counts: Mapping[str, int], max_tokens: int | None
    ) -> Iterator[Request]:
        """Yield a request for each text, given with its ids; `counts` counts the documents with this text."""
        tokenizer = self.model.tokenizer
        start: State | None = None
        template = self._template
        if not self.document_first and self.model.backbone.recurrent:
            prefix = template.before("document").render(tokenizer, query=query_ids).ids
            start = next(self.model.engine.map([Request(prefix, keep_state=True)])).state
            template = template.starting_at("document")
            max_tokens = max_tokens and max_tokens - len(prefix)
        for text, ids in documents.items():
            if start is None:
                pair = self.pair(query_ids, ids, max_tokens)
                self.truncated += counts[text] * (pair.cut > 0)
                yield pair.request
                continue
            rendered = template.render(tokenizer, document=ids, max_tokens=max_tokens)
            self.truncated += counts[text] * (rendered.cut > 0)
            yield self._head.request(rendered.ids, state=start)

    def pair(self, query_ids: np.ndarray, document_ids: np.ndarray, max_tokens: int | None = None) -> Item:
        """Make a pair to read as a whole, from ids of the template's `encode`, with `max_tokens` from `pair_limit`."""
        rendered = self._template.render(self.model.tokenizer, query=query_ids, document=document_ids, max_tokens=max_tokens)
        ids, total, empty = rendered.ids, len(rendered.ids), not len(document_ids)
        if not self._head.matches:
            return Item(self._head.request(ids), rendered.cut, empty)
        place, start = rendered.slices["document"], rendered.slices["query"].start
        marks, share = self._marks(ids, start, query_ids, np.unique(ids[place]))
        ranges = np.array([[place.start, start], [start, total]])
        return Item(Request(ids, [total - 1], ranges, marks=marks, tag=share), rendered.cut, empty)

    def _marks(self, ids: np.ndarray, start: int, query: np.ndarray, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return marks (T, K) of a row whose query starts at `start`, and the share (1, 1) of its idf in the document.

        `document` has distinct, sorted ids.
        """
        marks = np.zeros((len(ids), MARKS), dtype=np.float32)
        marks[start : start + len(query)] = mark(query, document, self._idf, MARK_QUERY)
        terms, first = np.unique(query, return_index=True)
        share = marks[start + first, MARK_MATCH].sum() / (self._idf[terms].sum() + 1e-6)
        return marks, np.array([[share]], dtype=np.float32)

    def _score(self, result: Result) -> float:
        with inference():
            return float(unit_scores(self._head, result)[0])


def _first_places(texts: Sequence[str]) -> list[int]:
    """Return the first position of each text, so that equal texts tie; an unknown text ("") keeps its own position."""
    places: dict[str, int] = {}
    return [places.setdefault(text, place) if text else place for place, text in enumerate(texts)]


def _texts(documents: Any) -> Iterator[tuple[str, str]]:
    return ((name, text_of(document)) for name, document in _named(documents))


def _named(documents: Any) -> Iterator[tuple[str, str | DocumentText]]:
    if not isinstance(documents, Mapping):
        expect_series(documents, "documents", "a list of texts or Documents, or a mapping from ids to texts")
    items: Iterable[tuple[str, Any]]
    items = documents.items() if isinstance(documents, Mapping) else ((str(place), item) for place, item in enumerate(documents))
    for name, item in items:
        document = item if isinstance(item, Document) else Document(name, item.text if isinstance(item, DocumentText) else item)
        yield document.id, item if isinstance(item, DocumentText) else document.text


def _distinct(documents: Iterable[tuple[str, _Text]]) -> Iterator[tuple[str, _Text]]:
    """Yield (id, text) pairs; a memory finds documents by their ids."""
    seen: set[str] = set()
    for name, text in documents:
        if name in seen:
            raise InputError(f"two documents have the id {name!r}; an id must name one document")
        seen.add(name)
        yield name, text
