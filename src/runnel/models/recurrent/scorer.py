"""The scores of remembered documents for a query, for a reranker with a recurrent model. A document
is read once, before any query is known; later each query is read from the state after it.

The template of a pair has the document first, and is cut where the query begins. With the template
"document: {document} ; query: {query} ;{end}", for example:

    document part   "document: Cats purr when they rest. ; query:"    read by `remember`
    query part      " why do cats purr ;" and the end marker          read by `score`

    remember    reads each document part, and keeps the state after it, one hidden vector and the
                document's token ids: a `DocumentState`
    score       for each batch of documents (`_score_batch`): copies their states into the rows of
                one state, reads the query part from all rows in one step, and calls the head

What a head is called with depends on its `Head.inputs`. Hidden vectors are of the query part unless
the table says otherwise:

    inputs       head              arguments
    "text"       EndScore          (n, D) the last token's
    "matches"    MatchScore        (n, D) the mean, weighted by `Model.weight`; (n, D) the last
                                   token's; (n, D) the mean kept with the document; (n, 1) the share
                                   of the query's idf whose tokens occur in the document
    "state"      StateScore        (n, L, ...) the tensor `Head.state` of the state after the last
                                   token
    "tokens"     QueryLikelihood   (n, Q, D) the one before each token of the query: first the last
                                   one of the document part; (Q,) the query's ids

A head with the inputs "vectors" reads no states; `models/pocket/scorer.py` calls it.

    n  documents of a batch   T  tokens of the query part   Q  tokens of the query, its first
    D  width of hidden vectors   L  layers
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch

from runnel.backbones.state import State
from runnel.errors import NumericalError
from runnel.models.head import WITHOUT_TOKENS, Head
from runnel.models.items import mark_pair
from runnel.models.memory import Memory, StatePrecision, damage_in_state
from runnel.models.model import Model
from runnel.models.recurrent.memory import DocumentState
from runnel.ops.backend import inference
from runnel.request import Progress, Request, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

_TOGETHER = 128  # documents tokenized together by `remember`
# Bytes of the states of a batch, which are read on in one step; larger steps were not faster.
_STATES_BYTES = 1 << 26


class StateScorer:
    """A `DocumentScorer` (`models/scoring.py`) that continues documents' states with a query."""

    kind = DocumentState  # the class of its remembered documents
    # A document that is not remembered is not read by this class: `Reranker` reads the whole
    # template, the document and the query, as one text.
    reads_pairs = True

    def __init__(self, model: Model, head: Head) -> None:
        self.model = model
        self._head = head
        self.template = head.template or model.templates["rerank"]
        # The hidden vector that is kept with a document's state. "last": the document part's last
        # one, from which `QueryLikelihood` predicts the first token of the query. "mean": the
        # weighted mean from the document's first token to the end of the document part, with which
        # `MatchScore` compares the query. Other heads do not use it.
        self._kept_vector: Literal["mean", "last"] = "last" if head.inputs == "tokens" else "mean"
        # The state whose rows hold a batch; allocated by a call of `score`, reused by the next.
        self._batch_state: State | None = None

    @property
    def remembers(self) -> bool:
        """Whether documents are read before the query, so that they can be remembered."""
        return self.template.fields[0] == "document" and self.model.backbone.recurrent

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        precision: StatePrecision,
        progress: Progress | None = None,
    ) -> Iterator[DocumentState]:
        """Read documents to remember them, in order."""
        count = TokenCount(progress)
        tokenizer = self.model.tokenizer
        document_part = self.template.before("query")
        texts = map(text_of, documents)
        while batch := list(itertools.islice(texts, _TOGETHER)):
            requests = []
            for text, encoded in zip(
                batch, document_part.encode_batch(tokenizer, "document", batch), strict=True
            ):
                rendered = document_part.render(tokenizer, document=encoded.ids)
                end = len(rendered.ids)
                # "last" is asked for as the mean of a range of one token: its vector
                start = (
                    end - 1 if self._kept_vector == "last" else rendered.slices["document"].start
                )
                requests.append(
                    Request(
                        rendered.ids,
                        ranges=np.array([[start, end]]),
                        keep_state=True,
                        # distinct ids tell which tokens of a query match, and whether there are any
                        tag=(text, np.unique(encoded.ids)),
                    )
                )
            for result in self.model.engine.map(requests, count.add):
                vector = result.get().means[0]  # of the only range
                text, distinct_ids = result.tag
                assert result.state is not None
                yield DocumentState.keep(
                    text,
                    result.state,
                    vector,
                    distinct_ids,
                    precision,
                    kept_vector=self._kept_vector,
                )

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (documents of the memory,) float32 in the order of the memory, as
        `Reranker.score` does.
        """
        query_ids = self.template.encode_query(self.model.tokenizer, query).ids
        scores = np.concatenate(
            [np.zeros(0, np.float32), *self._score_batches(query_ids, memory, progress)]
        )
        # Equal texts get equal scores, although their batches may round differently: a document
        # takes the score of the first document with its text. A document whose text is not known
        # ("") keeps its own score.
        first_with_text: dict[str, float] = {}
        for number, (_, text) in enumerate(memory.entries()):
            if text:
                scores[number] = first_with_text.setdefault(text, scores[number])
        return scores

    def _score_batches(
        self, query_ids: np.ndarray, memory: Memory, progress: Progress | None
    ) -> Iterator[np.ndarray]:
        """Yield the scores (n,) float32 of each batch of documents."""
        query_part = self.template.starting_at("query")
        ids = query_part.render(self.model.tokenizer, query=query_ids).ids
        backbone = self.model.backbone
        batch_size = max(
            1,
            min(
                self.model.engine.step_tokens // len(ids),
                _STATES_BYTES // backbone.state_bytes,
                len(memory),
            ),
        )
        # Allocating memory costs as much as filling it, so the batch state is kept between calls.
        # While this call uses it, the attribute is None, and a call in another thread allocates
        # its own.
        batch_state = self._batch_state
        self._batch_state = None
        if batch_state is None or len(batch_state) < batch_size:
            batch_state = backbone.new_state(batch_size)
        names = iter(memory.documents)
        count = TokenCount(progress, len(memory) * len(ids))
        while documents := [
            cast(DocumentState, memory[name]) for name in itertools.islice(names, batch_size)
        ]:
            scores = self._score_batch(documents, batch_state, ids, query_ids)
            if not np.isfinite(scores).all():
                raise NumericalError.while_reading("a score", "a remembered document")
            count.add(len(documents) * len(ids))
            scores[np.array([len(document.ids) == 0 for document in documents])] = WITHOUT_TOKENS
            yield scores.astype(np.float32)
        self._batch_state = batch_state

    @inference()
    def _score_batch(
        self,
        documents: Sequence[DocumentState],
        batch_state: State,
        ids: np.ndarray,
        query_ids: np.ndarray,
    ) -> np.ndarray:
        """Return the scores (n,) of documents. `ids` (T,) are of the query part, which begins with
        `query_ids` (Q,); `batch_state` has n rows or more, which are overwritten.
        """
        # 1. Copy the documents' states into the first n rows.
        engine = self.model.engine
        count = len(documents)
        state = State(
            {name: tensor[:count] for name, tensor in batch_state.tensors.items()},
            batch_state.tokens[:count],
        )
        with damage_in_state("a remembered document"):
            for row, document in enumerate(documents):
                document.fill(state, row)
            kept_vectors = torch.stack(
                [document.vector(self._kept_vector) for document in documents]
            ).view(count, self.model.backbone.hidden_size)
        # 2. Read the query part from each row, and
        # 3. collect the head's arguments: the table at the top of this file.
        arguments: list[Any]
        if self._head.inputs == "matches":
            marked = [
                mark_pair(self.model, ids, 0, query_ids, document.ids) for document in documents
            ]
            hidden = engine.extend(state, ids, np.stack([marks for marks, _ in marked]))
            token_weights = self.model.weight[torch.from_numpy(ids.astype(np.int64))]
            arguments = [
                (token_weights @ hidden) / token_weights.sum(),
                hidden[:, -1],
                kept_vectors,
                torch.from_numpy(np.concatenate([idf_share for _, idf_share in marked])),
            ]
        elif self._head.inputs == "state":
            engine.extend(state, ids, keep_states=True)
            arguments = [state[self._head.state].cpu()]
        elif self._head.inputs == "tokens":
            hidden = engine.extend(state, ids)
            # The vector before the query's first token is the document part's last; before each
            # later token, the vector of the token before, so that the query's last is not needed.
            before_query = hidden[:, : len(query_ids) - 1]
            arguments = [torch.cat([kept_vectors[:, None], before_query], 1), query_ids]
        else:
            # the pooling "cls" takes the first of the tokens read here, any other the last
            arguments = [engine.extend(state, ids)[:, 0 if self._head.pooling == "cls" else -1]]
        return self._head(*arguments).numpy()
