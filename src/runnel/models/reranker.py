"""Reranker: a score of how well each document answers a query; both are read as one text (papers B
and C).

With a template that puts the document first, the state after a document can be remembered.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import numpy as np

from runnel.batching import top
from runnel.checks import expect_choice, expect_count, expect_loaded, expect_series
from runnel.errors import InputError, needing
from runnel.models.embedder import Embedder
from runnel.models.folder import load_model
from runnel.models.head import WITHOUT_TOKENS
from runnel.models.items import Item, mark_pair
from runnel.models.memory import Memory, Remembered, StatePrecision, remember_in
from runnel.models.model import Model, WeightDtype
from runnel.models.pocket.scorer import VectorScorer
from runnel.models.scoring import DocumentScorer
from runnel.ops.backend import inference
from runnel.records import Document, Hit
from runnel.request import Progress, Request, Result, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

log = logging.getLogger("runnel")


class Reranker:
    """A model that scores the relevance of documents for a query. Make one with `Reranker.load`.

    Scores are logits: any real number, higher is better, comparable for one query.
    """

    def __init__(self, model: Model, *, head: Literal["rerank", "likelihood"] = "rerank") -> None:
        expect_loaded(model, "Reranker")
        self.model = model
        if head == "likelihood":
            from runnel.models.recurrent.likelihood import QueryLikelihood  # imports torch

            self._head: Any = QueryLikelihood(model)
        else:
            self._head = model.head("rerank")
        # what remembers documents and scores them
        if self._head.inputs == "vectors":
            self.scorer: DocumentScorer = VectorScorer(model, passages=True)
        else:
            from runnel.models.recurrent.scorer import StateScorer  # imports torch

            self.scorer = StateScorer(model, self._head)
        self._template, self.remembers = self.scorer.template, self.scorer.remembers
        self.reads_pairs = self.scorer.reads_pairs
        self.truncated = 0  # documents cut by `max_tokens` in the last call

    @classmethod
    def load(
        cls,
        name: str | Path,
        dtype: WeightDtype = "auto",
        device: str = "auto",
        *,
        template: str | None = None,
        head: Literal["rerank", "likelihood"] = "rerank",
    ) -> Self:
        """Load a built-in model ("pocket", "minilm-mamba2", "pocket-mamba2"), a folder with a
        rerank head, a published cross-encoder, or a hub id.

        Args:
            template: how a pair is written: "rankmamba" or "ssm-rerankers", as in these papers,
                "rankmamba-code", as in the former's checkpoints, or "pair", as the tokenizer does
                by default (docs/models.md). Default: the model's.
            head: "rerank", which was trained to score pairs, or "likelihood": how probable a
                recurrent language model finds the query after the document, the mean log
                probability of its tokens, without training
                (`models/recurrent/likelihood.py`).

        Raises:
            CheckpointError: the model is missing, or has no rerank head or no LM head.
            InputError: the template or the head is unknown, they do not go together, or the model
                for "likelihood" is not recurrent.
        """
        expect_choice(head, ("rerank", "likelihood"), "head")
        if head == "likelihood":
            if template is not None:
                raise InputError(
                    f"head='likelihood' has a template of its own; omit template={template!r}"
                )
            with needing(f"the likelihood of {name} needs torch", "recurrent"):
                from runnel.models.recurrent.language_model import load_generator

            return cls(load_generator(name, dtype, device), head=head)
        return cls(load_model(name, dtype, device, template=template, job="rerank", arrays=True))

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.model.save(folder, weights=weights, job="rerank")

    def score(
        self,
        query: str,
        documents: Sequence[str | DocumentText | Remembered] | Memory,
        *,
        progress: Progress | None = None,
        max_tokens: int | None = None,
    ) -> np.ndarray:
        """Return scores (n,) float32 of documents, or of a memory's documents, in their order.
        Equal texts have equal scores.

        A document without a token, such as "" or U+200B, is not ranked by the model: its score is
        -700, below any other.

        Args:
            documents: texts, documents of a memory or a mixture, or the result of `remember`.
            max_tokens: cut documents (never the query) so that query and document together have at
                most this many tokens, or as many as the model can read if that is less; default:
                nothing is cut. The number of cut documents is in `truncated`, with a warning.

        Raises:
            InputError: the query is empty or has no tokens, the memory belongs to another model, or
                a pair is longer than a transformer can read.
        """
        self.truncated = 0
        if isinstance(documents, Memory):
            own, theirs = self.model.backbone, documents.backbone
            if own is not theirs and own.fingerprint() != theirs.fingerprint():
                raise InputError(
                    "this memory was made by another model; remember the documents again with"
                    " this one"
                )
            return self.scorer.score(query, documents, progress)
        # Remembered documents among texts: both are scored apart, and put together again in order.
        # Only a list is looked through: it can be read twice.
        if isinstance(documents, list) and any(
            isinstance(document, Remembered) for document in documents
        ):
            kept = {
                str(place): document
                for place, document in enumerate(documents)
                if isinstance(document, Remembered)
            }
            unread = [document for document in documents if not isinstance(document, Remembered)]
            groups = (Memory(self.model.backbone, kept), unread)
            count = TokenCount(progress)
            known, read = (
                iter(self.score(query, group, progress=count.part(), max_tokens=max_tokens))
                for group in groups
            )
            return np.array(
                [next(known if isinstance(item, Remembered) else read) for item in documents],
                dtype=np.float32,
            )
        given = [text for _, text in _texts(documents)]
        texts = list(dict.fromkeys(given))
        if not self.scorer.reads_pairs:
            if max_tokens is not None:
                raise InputError(
                    f"{self.model.source} reads documents of any length, in passages; do not give"
                    " max_tokens (--max-tokens)"
                )
            memory = self.remember(texts, progress=progress)
            scores = dict(zip(texts, self.scorer.score(query, memory).tolist(), strict=True))
            return np.array([scores[text] for text in given], dtype=np.float32)
        query_ids = self._template.encode_query(self.model.tokenizer, query).ids
        max_tokens = self.model.text_limit(max_tokens)
        encoded = self._template.encode_batch(self.model.tokenizer, "document", texts)
        # texts with a token; all others keep the score WITHOUT_TOKENS
        full = {text: item.ids for text, item in zip(texts, encoded, strict=True) if len(item)}
        requests = self._requests(query_ids, full, Counter(given), max_tokens)
        results = self.model.engine.map(requests, TokenCount(progress).add)
        scores = dict.fromkeys(texts, WITHOUT_TOKENS)
        scores |= {
            text: self._score(result.get()) for text, result in zip(full, results, strict=True)
        }
        if self.truncated:
            log.warning("%d documents were cut to fit into %s tokens", self.truncated, max_tokens)
        return np.array([scores[text] for text in given], dtype=np.float32)

    def score_pairs(self, pairs: Iterable[Item]) -> np.ndarray:
        """Return scores float32 (n,) of pairs made by `pair`, for one query or several."""
        pairs = list(pairs)
        results = self.model.engine.map(pair.request for pair in pairs)
        scores = np.array([self._score(result.get()) for result in results], dtype=np.float32)
        return np.where([pair.empty for pair in pairs], np.float32(WITHOUT_TOKENS), scores)

    def score_text_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        progress: Progress | None = None,
        max_tokens: int | None = None,
    ) -> np.ndarray:
        """Return scores (n,) float32 of pairs of a query and a document, as `score`: the documents
        of each query are read in one call.
        """
        places: dict[str, list[int]] = defaultdict(list)
        for place, (query, _) in enumerate(pairs):
            places[query].append(place)
        count = TokenCount(progress)
        scores = np.zeros(len(pairs), np.float32)
        cut = 0
        for query, own in places.items():
            texts = [pairs[place][1] for place in own]
            scores[own] = self.score(query, texts, progress=count.part(), max_tokens=max_tokens)
            cut += self.truncated
        self.truncated = cut
        return scores

    def rank(
        self,
        query: str,
        documents: (
            Sequence[str | DocumentText]
            | Mapping[str, str | DocumentText]
            | Sequence[Document]
            | Memory
        ),
        top_k: int | None = None,
        *,
        progress: Progress | None = None,
        max_tokens: int | None = None,
    ) -> list[Hit]:
        """Rank documents, best first, ties in the given order.

        Args:
            documents: strings (ids are their positions "0", "1", ...), {id: text}, `Document`s, or
                a `Memory`.
            top_k: how many to return; default: all.
            max_tokens: as in `score`; remembered documents are not cut.
        """
        if top_k is not None:
            expect_count(top_k, "top_k")
        pairs = documents.entries() if isinstance(documents, Memory) else list(_texts(documents))
        texts = documents if isinstance(documents, Memory) else [text for _, text in pairs]
        scores = self.score(query, texts, progress=progress, max_tokens=max_tokens)
        best = enumerate(top(scores, top_k), start=1)
        return [Hit(pairs[i][0], float(scores[i]), rank, pairs[i][1]) for rank, i in best]

    def remember(
        self,
        documents: (
            Iterable[str | DocumentText] | Mapping[str, str | DocumentText] | Iterable[Document]
        ),
        path: str | Path | None = None,
        dtype: str = "int8",
        *,
        progress: Progress | None = None,
    ) -> Memory:
        """Read documents once and keep their states for any number of queries.

        Args:
            path: a folder; default: RAM. Texts already remembered there are not read again, so an
                interrupted call can be repeated.
            dtype: of a recurrent model's states: "int8" (one scale per row), "bf16" or "fp32". With
                "fp32", scores differ from the scores of whole pairs no more than those do when read
                in other steps.

        Raises:
            InputError: the model cannot remember (`remembers`), two documents have one id, or the
                dtype is unknown.
        """
        expect_choice(dtype, get_args(StatePrecision), "dtype")
        pairs = list(_named(documents))
        precision = cast(StatePrecision, dtype)
        named = dict(pairs)
        if len(named) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise InputError(f"two documents have the id {name!r}; an id must name one document")
        if not self.remembers:
            raise cannot_remember_error(self.model)
        read = partial(self.scorer.remember, precision=precision, progress=progress)
        if path is not None:
            return remember_in(
                Path(path), named, self.model.backbone, precision, read, self.scorer.kind
            )
        return Memory(self.model.backbone, dict(zip(named, read(named.values()), strict=True)))

    def shares(self, embedder: Embedder) -> bool:
        """Return whether the embedder and `remember` read a document in the same way, so that one
        pass serves both: the same model reads the same ids, without a prompt for documents, and the
        pooling is "mean", as the remembered vector is a mean.
        """
        return (
            self.remembers
            and embedder.model is self.model
            and embedder.pooling == "mean"
            and not self.model.prompts.get("document")
            and self._template.before("query").parts == self.model.templates["document"].parts
        )

    def _requests(
        self,
        query_ids: np.ndarray,
        documents: Mapping[str, np.ndarray],
        counts: Mapping[str, int],
        max_tokens: int | None,
    ) -> Iterator[Request]:
        """Yield a request for each text, given with its ids; `counts` counts the documents with
        this text.
        """
        for text, ids in documents.items():
            pair = self.pair(query_ids, ids, max_tokens)
            self.truncated += counts[text] * (pair.cut > 0)
            yield pair.request

    def pair(
        self, query_ids: np.ndarray, document_ids: np.ndarray, max_tokens: int | None = None
    ) -> Item:
        """Make a pair to read as a whole, from ids of the template's `encode`, with `max_tokens`
        from `Model.text_limit`. What the request asks for depends on the head's inputs: the table
        is in `models/recurrent/units.py`.
        """
        rendered = self._template.render(
            self.model.tokenizer, query=query_ids, document=document_ids, max_tokens=max_tokens
        )
        ids = rendered.ids
        empty = not len(document_ids)
        if self._head.inputs == "tokens":
            query = rendered.slices["query"]
            before = np.arange(query.start - 1, query.stop - 1)  # each token of the query
            return Item(Request(ids, before, tag=ids[query]), rendered.cut, empty)
        if self._head.inputs != "matches":
            return Item(self._head.request(ids), rendered.cut, empty)
        place = rendered.slices["document"]
        start = rendered.slices["query"].start
        marks, share = mark_pair(self.model, ids, start, query_ids, np.unique(ids[place]))
        ranges = np.array([[place.start, start], [start, len(ids)]])
        request = Request(ids, [len(ids) - 1], ranges, marks=marks, tag=share)
        return Item(request, rendered.cut, empty)

    def _score(self, result: Result) -> float:
        from runnel.models.recurrent.units import unit_scores  # imports torch

        with inference():
            return float(unit_scores(self._head, result)[0])


def cannot_remember_error(model: Model) -> InputError:
    """Return the error for documents that a model cannot remember."""
    return InputError(
        f"{model.source} cannot remember documents: it is neither an encoder that reads passages"
        " nor a recurrent reranker whose template puts the document first; use another model, such"
        " as pocket"
    )


def _texts(documents: Any) -> Iterator[tuple[str, str]]:
    return ((name, text_of(document)) for name, document in _named(documents))


def _named(documents: Any) -> Iterator[tuple[str, str | DocumentText]]:
    if not isinstance(documents, Mapping):
        expect_series(
            documents, "documents", "a list of texts or Documents, or a mapping from ids to texts"
        )
    items: Iterable[tuple[str, Any]] = (
        documents.items()
        if isinstance(documents, Mapping)
        else ((str(place), item) for place, item in enumerate(documents))
    )
    for name, item in items:
        document = (
            item
            if isinstance(item, Document)
            else Document(name, item.text if isinstance(item, DocumentText) else item)
        )
        yield document.id, item if isinstance(item, DocumentText) else document.text
