"""The scores of documents whose states are continued with a query, for a reranker.

    remember    reads documents once and keeps their states
    score       fills a batch of these states into the rows of one state, continues all rows with
                the query's tokens in one step, and lets the head score what they give

T  tokens of the query's part: the template from the query on   D  width of hidden vectors
n  documents
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

_TOGETHER = 128  # documents tokenized together
# Bytes of the states that one step continues; larger steps were not faster.
_STATES_BYTES = 1 << 26


class StateScorer:
    """A scorer of documents whose states are continued with a query, all with the same tokens."""

    kind = DocumentState
    reads_pairs = True  # a document that is not remembered is read together with the query

    def __init__(self, model: Model, head: Head) -> None:
        self.model, self._head = model, head
        self.template = head.template or model.templates["rerank"]
        # which hidden vector of a document is remembered with its state
        self._vector: Literal["mean", "last"] = "last" if head.inputs == "tokens" else "mean"
        # allocated by the last ranking from a memory, reused by the next
        self._room: State | None = None

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
        before = self.template.before("query")
        texts = map(text_of, documents)
        while batch := list(itertools.islice(texts, _TOGETHER)):
            requests = []
            for text, encoded in zip(
                batch, before.encode_batch(tokenizer, "document", batch), strict=True
            ):
                rendered = before.render(tokenizer, document=encoded.ids)
                end = len(rendered.ids)
                start = end - 1 if self._vector == "last" else rendered.slices["document"].start
                ranges = np.array([[start, end]])
                requests.append(
                    Request(
                        rendered.ids,
                        ranges=ranges,
                        keep_state=True,
                        tag=(text, np.unique(encoded.ids)),
                    )
                )
            for result in self.model.engine.map(requests, count.add):
                vector = result.get().means[0]
                text, unique = result.tag
                assert result.state is not None
                yield DocumentState.keep(
                    text, result.state, vector, unique, precision, kept_vector=self._vector
                )

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        query_ids = self.template.encode_query(self.model.tokenizer, query).ids
        scores = np.concatenate(
            [np.zeros(0, np.float32), *self._scores(query_ids, memory, progress)]
        )
        # By text, the first document that has it: equal texts get equal scores. A document whose
        # text is not known ("") stands for itself.
        places: dict[str, int] = {}
        texts = enumerate(text for _, text in memory.entries())
        return scores[[places.setdefault(text, place) if text else place for place, text in texts]]

    def _scores(
        self, query_ids: np.ndarray, memory: Memory, progress: Progress | None
    ) -> Iterator[np.ndarray]:
        """Yield scores in batches of documents. All states continue with the same tokens, so the
        states of a batch are the rows of one step.
        """
        rendered = self.template.starting_at("query").render(self.model.tokenizer, query=query_ids)
        ids = rendered.ids
        start = rendered.slices["query"].start
        backbone = self.model.backbone
        rows = max(
            1,
            min(
                self.model.engine.step_tokens // len(ids),
                _STATES_BYTES // backbone.state_bytes,
                len(memory),
            ),
        )
        # Allocating memory costs as much as filling it, so it is kept; a concurrent ranking in
        # another thread allocates its own.
        room = self._room
        self._room = None
        if room is None or len(room) < rows:
            room = backbone.new_state(rows)
        names = iter(memory.documents)
        count = TokenCount(progress, len(memory) * len(ids))
        while documents := [
            cast(DocumentState, memory[name]) for name in itertools.islice(names, rows)
        ]:
            scores = self._score_batch(documents, room, ids, start, query_ids)
            if not np.isfinite(scores).all():
                raise NumericalError.while_reading("a score", "a remembered document")
            count.add(len(documents) * len(ids))
            scores[[not len(document.ids) for document in documents]] = WITHOUT_TOKENS
            yield scores.astype(np.float32)
        self._room = room

    @inference()
    def _score_batch(
        self,
        documents: Sequence[DocumentState],
        room: State,
        ids: np.ndarray,
        start: int,
        query_ids: np.ndarray,
    ) -> np.ndarray:
        """Return the scores (n,) of documents: their states, copied into `room`, are continued with
        `ids` (T,), in which the query starts at `start`.
        """
        engine = self.model.engine
        count = len(documents)
        values: list[Any]  # the arguments of the head, which depend on its kind (`Head.inputs`)
        state = State(
            {name: tensor[:count] for name, tensor in room.tensors.items()}, room.tokens[:count]
        )
        with damage_in_state("a remembered document"):
            for place, document in enumerate(documents):
                document.fill(state, place)
            vectors = torch.stack([document.vector(self._vector) for document in documents]).view(
                count, self.model.backbone.hidden_size
            )
        if self._head.inputs == "matches":
            matches = [
                mark_pair(self.model, ids, start, query_ids, document.ids) for document in documents
            ]
            hidden = engine.extend(state, ids, np.stack([marks for marks, _ in matches]))
            weight = self.model.weight[torch.from_numpy(ids[start:].astype(np.int64))]
            mean = (weight @ hidden[:, start:]) / weight.sum()
            values = [
                mean,
                hidden[:, -1],
                vectors,
                torch.from_numpy(np.concatenate([share for _, share in matches])),
            ]
        elif self._head.inputs == "state":
            engine.extend(state, ids, keep_states=True)
            values = [state[self._head.state].cpu()]
        elif self._head.inputs == "tokens":
            hidden = engine.extend(state, ids)
            values = [torch.cat([vectors[:, None], hidden[:, : len(query_ids) - 1]], 1), query_ids]
        else:
            values = [engine.extend(state, ids)[:, 0 if self._head.pooling == "cls" else -1]]
        return self._head(*values).numpy()
