"""What only torch computes: readers, stream and memory of recurrent models, and of transformers
that are no encoders.

One pass over a document also returns the state before its last passage: if text is appended later,
reading resumes there.

P  passages   d  width of the vectors   D  width of hidden vectors   T  tokens   n  documents
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import NumericalError, StateError
from runnel.models.base import Model
from runnel.models.heads import WITHOUT_TOKENS
from runnel.models.items import mark_pair
from runnel.models.memory import Memory, Precision, Remembered, damage_in_state, pack, unpack
from runnel.models.readers import (
    Documents,
    ReadDocument,
    Reader,
    ReadOptions,
    Stream,
    passage_spans,
)
from runnel.ops.backend import inference
from runnel.ops.numba_math import as_array
from runnel.request import Progress, Request, Result, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import passage_bounds, sentence_of_tokens, split_sentences

log = logging.getLogger("runnel")
_TOGETHER = 128  # documents tokenized together
_STATES_BYTES = 1 << 26  # of states continued in one step; more were no faster


@dataclass(frozen=True, eq=False)
class DocumentState(Remembered):
    """The state after a document, in a precision, with the mean of its hidden vectors and its
    distinct token ids.
    """

    text: str
    # "tokens" (1,), "mean" (D,), "ids" (sorted), "state.NAME" and, in 8 bits, "scale.NAME"
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> DocumentState:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(
            text,
            {
                name: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t
                for name, t in tensors.items()
            },
        )

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {name: as_array(tensor) for name, tensor in self.tensors.items()}

    @classmethod
    def keep(
        cls, text: str, state: State, mean: Tensor, ids: np.ndarray, precision: Precision
    ) -> DocumentState:
        """Keep a state of one row in a precision; ids are sorted."""
        tensors = {"tokens": state.tokens, "mean": mean, "ids": torch.from_numpy(ids)}
        whole = sum(tensor.numel() for tensor in state.tensors.values())
        for name, tensor in state.tensors.items():
            if 100 * tensor.numel() < whole:  # small, and may scale the others (xLSTM's m and n)
                tensors[f"state.{name}"] = tensor
            elif precision == "int8" and tensor.shape[-1] >= 16:
                # short last dimensions (conv tails) are a few percent
                scale = (tensor.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-30)
                tensors |= {
                    f"state.{name}": (tensor / scale).round().to(torch.int8),
                    f"scale.{name}": scale,
                }
            else:
                tensors[f"state.{name}"] = (
                    tensor if precision == "fp32" else tensor.to(torch.bfloat16)
                )
        return cls(text, tensors)

    @property
    def mean(self) -> Tensor:
        """(D,) fp32"""
        return self.tensors["mean"].float()

    @property
    def ids(self) -> np.ndarray:
        """The sorted distinct token ids of the document."""
        return self.tensors["ids"].int().numpy()

    def fill(self, state: State, place: int) -> None:
        """Fill a row of a state in place: rows are as large as a processor's cache, and there are
        many.
        """
        for name, tensor in state.tensors.items():
            tensor[place].copy_(self.tensors[f"state.{name}"][0])
            if f"scale.{name}" in self.tensors:
                tensor[place].mul_(self.tensors[f"scale.{name}"][0])
        state.tokens[place] = self.tensors["tokens"][0]


class StateStream(Stream):
    """The stream of a recurrent model: the end marker and the last unsettled word are read on a
    copy of the state.
    """

    def _start(self, lead: str) -> None:
        backbone = self._model.backbone
        backbone.check_whole(np.zeros(1), continues=not backbone.recurrent)
        self._tokens, self._state = self._model.tokenizer.stream(), backbone.new_state(1)
        self._total = 0.0
        # hidden vector of the last token, once one has been read here
        self._last = torch.full((1, len(self._sum)), torch.nan)
        template = self._model.templates["document"]
        self._rest = template.starting_at("document")
        self._advance(template.before("document").render(self._model.tokenizer).ids)
        self._add(lead)

    @property
    def tokens(self) -> int:  # type: ignore[override]
        return int(self._state.tokens[0])

    def _add(self, text: str) -> None:
        self._advance(self._tokens.feed(text).ids)

    def _pooled(self) -> Tensor:  # of torch's heads
        tail = self._rest.render(self._model.tokenizer, document=self._tokens.peek().ids).ids
        total, weight, last = self._sum, self._total, self._last
        if len(tail):
            result = self._read(tail)
            total, weight, last = (
                total + result.sums[0].numpy(),
                weight + float(result.totals[0]),
                result.hidden,
            )
        return (
            torch.from_numpy((total / weight)[None]).float()
            if self._embedder.pooling == "mean"
            else last
        )

    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        values = {f"state.{name}": as_array(tensor) for name, tensor in self._state.tensors.items()}
        values |= {"tokens": self._state.tokens.numpy(), "total": np.array(self._total)}
        return {**values, "pending": self._tokens.save().encode()}

    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        state = {
            name: torch.from_numpy(values[f"state.{name}"]).to(tensor)
            for name, tensor in self._state.tensors.items()
        }
        self._state = State(state, torch.from_numpy(values["tokens"])).check(
            self._model.backbone.state_shapes()
        )
        self._total = float(values["total"])
        self._tokens.restore(values["pending"].tobytes().decode())

    def _advance(self, ids: np.ndarray) -> None:
        if len(ids):
            result = self._read(ids)
            assert result.state is not None
            self._state, self._last = result.state, result.hidden
            self._sum, self._total = (
                self._sum + result.sums[0].numpy(),
                self._total + float(result.totals[0]),
            )

    def _read(self, ids: np.ndarray) -> Result:
        """Read ids after the text so far, without changing the stream."""
        request = Request(
            ids, [len(ids) - 1], np.array([[0, len(ids)]]), state=self._state, keep_state=True
        )
        return self._model.engine.run([request])[0]


@dataclass(eq=False)
class _Reading:
    """A document in progress. The last passage starts at token `split`, reading starts at token
    `begin`.
    """

    ids: np.ndarray
    spans: np.ndarray
    starts: np.ndarray  # (P,) tokens
    ends: np.ndarray
    text: str
    known: Tensor  # (p, D) pooled passages before `begin`, later before `split`
    sum: Tensor  # (D,) fp64, sum of the weighted hidden vectors of the same tokens
    total: float = 0.0  # sum of their weights
    begin: int = 0
    split: int = 0
    state: State | None = None
    saved: bytes | None = None
    memory: Remembered | None = None


class StateReader(Reader):
    """A reader with a recurrent model."""

    stream = StateStream

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        readings = list(self._prepare(list(map(text_of, documents)), options))
        for reading, before in zip(readings, saved, strict=True):
            if before is not None:
                self._resume(reading, before)
        read = [len(reading.ids) - reading.begin for reading in readings]
        count, engine = TokenCount(options.progress), self.model.engine
        first = [reading for reading in readings if reading.split > reading.begin]
        for result in engine.map(
            [self._request(each, each.split, keep_state=True) for each in first], count.add
        ):
            self._take(result)
            result.tag.state, result.tag.begin = result.state, result.tag.split
        for reading in readings:
            if reading.split:
                reading.saved = self._dump(reading)
        requests = [
            self._request(each, len(each.ids), keep_state=options.remember) for each in readings
        ]
        for result in engine.map(requests, count.add):
            after = self._take(result)
            if result.state is not None:
                result.tag.memory = self._remembered(result.tag, result.state, after)
        pooled = [
            torch.cat([each.known, (each.sum / each.total).float()[None]]) for each in readings
        ]
        return [
            ReadDocument(
                vectors[-1], each.spans, vectors[:-1], len(each.ids), count, each.saved, each.memory
            )
            for each, vectors, count in zip(readings, self._vectors(pooled), read, strict=True)
        ]

    def _prepare(self, texts: Sequence[str], options: ReadOptions) -> Iterator[_Reading]:
        """Tokenize, in one call to the tokenizer, which uses all cores, and lay out documents."""
        model, template = self.model, self.model.templates["document"]
        prompt, width = model.prompts.get("document", ""), model.backbone.hidden_size
        encoded = template.encode_batch(
            model.tokenizer, "document", [prompt + text for text in texts]
        )
        for text, one in zip(texts, encoded, strict=True):
            rendered, sentences = (
                template.render(model.tokenizer, document=one.ids),
                split_sentences(text),
            )
            own = one.shifted(-len(prompt))  # the prompt has negative offsets
            bounds = sentence_of_tokens(sentences, own)
            bounds[0] = np.searchsorted(own.starts, 0)
            chosen = passage_bounds(bounds, options.passage_tokens)
            tokens = bounds[chosen] + rendered.slices["document"].start
            spans = passage_spans(text, sentences, chosen)
            none = torch.zeros(0, width), torch.zeros(width, dtype=torch.float64)
            reading = _Reading(rendered.ids, spans, tokens[:-1], tokens[1:], text, *none)
            if len(rendered.ids) >= options.save_from and len(chosen) > 2:
                reading.split = int(tokens[-2])
            yield reading

    def _resume(self, reading: _Reading, saved: bytes) -> None:
        """Continue from an earlier reading if this document begins like that one and the saved data
        is not damaged.
        """
        try:
            stored = unpack(
                saved, "the state of an earlier reading", self.model.backbone.fingerprint()
            )
            values = {name: torch.from_numpy(array) for name, array in stored.items()}
            at, count = int(values["at"]), len(values["known"])
            state = State(
                {name[6:]: tensor for name, tensor in values.items() if name.startswith("state.")},
                values["tokens"],
            )
            state.check(self.model.backbone.state_shapes())
            known, total, sums, depends = (
                values["known"],
                float(values["total"]),
                values["sum"],
                values["depends"].tolist(),
            )
        except (StateError, KeyError, IndexError) as error:
            log.warning("%s; reading the document from the start", error)
            return
        same_passages = (
            at <= reading.split and reading.starts[min(count, len(reading.starts) - 1)] == at
        )
        if same_passages and depends == _dependencies(reading, at, count):
            reading.state, reading.begin = state, at
            reading.known, reading.sum, reading.total = known, sums, total

    def _dump(self, reading: _Reading) -> bytes:
        assert reading.state is not None
        tensors = {"tokens": reading.state.tokens, "known": reading.known, "sum": reading.sum}
        tensors |= {f"state.{name}": tensor for name, tensor in reading.state.tensors.items()}
        arrays = {"at": np.array([reading.split]), "total": np.array([reading.total])}
        arrays["depends"] = np.array(_dependencies(reading, reading.split, len(reading.known)))
        return pack(
            arrays | {name: as_array(tensor) for name, tensor in tensors.items()},
            self.model.backbone.fingerprint(),
        )

    def _request(self, reading: _Reading, stop: int, *, keep_state: bool) -> Request:
        """Return the request for tokens `begin` to `stop`, which pools their passages, the tokens
        after the last, and all.
        """
        inside = (reading.starts >= reading.begin) & (reading.ends <= stop)
        starts, ends = reading.starts[inside] - reading.begin, reading.ends[inside] - reading.begin
        ids = reading.ids[reading.begin : stop]
        total = len(ids)
        starts, ends = (
            np.append(starts, [min(ends[-1], total - 1), 0]),
            np.append(ends, [total, total]),
        )
        request = Request(ids, state=reading.state, keep_state=keep_state, tag=reading)
        if self.embedder.pooling == "mean":
            return replace(request, ranges=np.stack([starts, ends], axis=1))
        return replace(request, positions=ends - 1)

    def _take(self, result: Result) -> Tensor:
        """Add a result to its document: passages, and the total to the running sum. Return the
        pooled tokens after them (D,).
        """
        reading: _Reading = result.get().tag
        if self.embedder.pooling == "mean":
            pooled = result.means
            reading.sum, reading.total = (
                reading.sum + result.sums[-1],
                reading.total + float(result.totals[-1]),
            )
        else:
            pooled = result.hidden
            # the hidden vector at the last token so far
            reading.sum, reading.total = pooled[-1].double(), 1.0
        reading.known = torch.cat([reading.known, pooled[:-2]])
        return pooled[-2]

    def _remembered(self, reading: _Reading, state: State, after: Tensor) -> DocumentState:
        """Make the remembered document from the end state, as the reranker: with the mean from the
        document's first token on.
        """
        edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
        weight = self.model.weight.numpy()[reading.ids].astype(np.float64)
        totals = torch.from_numpy(np.add.reduceat(weight, edges[:-1]))
        parts = torch.cat([reading.known, after[None]])[: len(totals)].double()
        document = np.unique(reading.ids[reading.starts[0] : reading.ends[-1]])
        return DocumentState.keep(
            reading.text, state, (totals @ parts / totals.sum()).float(), document, "int8"
        )


def _dependencies(reading: _Reading, at: int, count: int) -> list[int]:
    """Return a digest of everything that the state and the first `count` passages, up to token
    `at`, depend on.
    """
    digest = hashlib.blake2b(reading.ids[:at].astype("<i4").tobytes(), digest_size=20)
    digest.update(reading.starts[:count].astype("<i8").tobytes())
    return list(digest.digest())


class StateScorer:
    """A scorer of documents whose states are continued with a query, all with the same tokens."""

    kind = DocumentState
    reads_pairs = True  # a document that is not remembered is read together with the query

    def __init__(self, model: Model) -> None:
        self.model, self._head, self.template = (
            model,
            model.head("rerank"),
            model.templates["rerank"],
        )
        # allocated by the last ranking from a memory, reused by the next
        self._room: State | None = None

    @property
    def remembers(self) -> bool:
        """Whether documents are read before the query, so that they can be remembered."""
        return self.template.fields[0] == "document" and self.model.backbone.recurrent

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        precision: Precision,
        progress: Progress | None = None,
    ) -> Iterator[DocumentState]:
        """Read documents to remember them, in order."""
        count = TokenCount(progress)
        tokenizer, before, texts = (
            self.model.tokenizer,
            self.template.before("query"),
            map(text_of, documents),
        )
        while batch := list(itertools.islice(texts, _TOGETHER)):
            requests = []
            for text, encoded in zip(
                batch, before.encode_batch(tokenizer, "document", batch), strict=True
            ):
                rendered = before.render(tokenizer, document=encoded.ids)
                ranges = np.array([[rendered.slices["document"].start, len(rendered.ids)]])
                requests.append(
                    Request(
                        rendered.ids,
                        ranges=ranges,
                        keep_state=True,
                        tag=(text, np.unique(encoded.ids)),
                    )
                )
            for result in self.model.engine.map(requests, count.add):
                mean, (text, unique) = result.get().means[0], result.tag
                assert result.state is not None
                yield DocumentState.keep(text, result.state, mean, unique, precision)

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        query_ids = self.template.encode_query(self.model.tokenizer, query)
        scores = np.concatenate(
            [np.zeros(0, np.float32), *self._scores(query_ids, memory, progress)]
        )
        # the first of each text, so that equal texts tie; an unknown text ("") keeps its own
        places: dict[str, int] = {}
        texts = enumerate(text for _, text in memory.entries())
        return scores[[places.setdefault(text, place) if text else place for place, text in texts]]

    def _scores(
        self, query_ids: np.ndarray, memory: Memory, progress: Progress | None
    ) -> Iterator[np.ndarray]:
        """Yield scores in batches of documents: all continue with the same tokens, so their states
        are the rows of one step.
        """
        rendered = self.template.starting_at("query").render(self.model.tokenizer, query=query_ids)
        ids, start, backbone = rendered.ids, rendered.slices["query"].start, self.model.backbone
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
        room, self._room = self._room, None
        if room is None or len(room) < rows:
            room = backbone.new_state(rows)
        names, count = iter(memory.documents), TokenCount(progress, len(memory) * len(ids))
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
        """Return scores (n,) of documents continued, in `room`, with `ids` (T,), in which the query
        starts at `start`.
        """
        engine, count = self.model.engine, len(documents)
        state = State(
            {name: tensor[:count] for name, tensor in room.tensors.items()}, room.tokens[:count]
        )
        with damage_in_state("a remembered document"):
            for place, document in enumerate(documents):
                document.fill(state, place)
            means = torch.stack([document.mean for document in documents]).view(
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
                means,
                torch.from_numpy(np.concatenate([share for _, share in matches])),
            ]
        elif self._head.inputs == "state":
            engine.extend(state, ids, keep_states=True)
            values = [state[self._head.state].cpu()]
        else:
            values = [engine.extend(state, ids)[:, 0 if self._head.pooling == "cls" else -1]]
        scores: np.ndarray = self._head(*values).numpy()
        return scores


class WholeReader(Reader):
    """A reader with a transformer: its first token represents the text that it begins, and no
    other.
    """

    stream = StateStream  # raises: it has no state

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        model = self.model
        template, prompt = (
            model.templates["document"],
            "document" if "document" in model.prompts else None,
        )
        most, longest = options.passage_tokens, model.backbone.longest_text
        if longest is not None:
            # the prompt and special tokens, and "a"
            around = len(next(self.embedder.render(["a"], prompt=prompt)))
            most = min(most, longest - around)
        spans, rows, counts, texts = [], [], [], list(map(text_of, documents))
        for text, encoded in zip(
            texts, template.encode_batch(model.tokenizer, "document", texts), strict=True
        ):
            sentences = split_sentences(text)
            spans.append(
                passage_spans(
                    text, sentences, passage_bounds(sentence_of_tokens(sentences, encoded), most)
                )
            )
            read = list(
                self.embedder.render((text[start:end] for start, end in spans[-1]), prompt=prompt)
            )
            rows += read
            counts.append(np.array([len(row) for row in read]))
        vectors, out = self.embedder.encode_rows(rows, options.progress), []
        for one, count in zip(spans, counts, strict=True):
            own = np.stack(list(itertools.islice(vectors, len(count))))
            mean, tokens = count.astype(np.float32) @ own, int(count.sum())
            out.append(
                ReadDocument(mean / np.linalg.norm(mean), one, own, tokens, tokens, None, None)
            )
        return out
