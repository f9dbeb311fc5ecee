"""How a recurrent model reads documents for an embedder, and its stream.

One pass over a document also returns the state before its last passage: if text is appended later,
reading resumes there.

P  passages of a document      p  passages before the one at which reading begins
D  width of hidden vectors
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import StateError
from runnel.models.memory import Remembered, pack, unpack
from runnel.models.reading import (
    Documents,
    ReadDocument,
    ReadOptions,
    Stream,
    TextReader,
    passage_spans,
)
from runnel.models.recurrent.memory import DocumentState
from runnel.ops.numba_math import as_array
from runnel.request import Request, Result, TokenCount, as_tensor
from runnel.text.kinds import text_of
from runnel.text.sentences import passage_bounds, sentence_of_tokens, split_sentences

log = logging.getLogger("runnel")


class StateStream(Stream):
    """The stream of a recurrent model: the end marker and the last unsettled word are read on a
    copy of the state.
    """

    def _start(self, lead: str) -> None:
        backbone = self._model.backbone
        backbone.check_whole(np.zeros(1), continues=not backbone.recurrent)
        self._tokens = self._model.tokenizer.stream()
        self._state = backbone.new_state(1)
        self._total = 0.0
        # (1, D) the hidden vector of the last token; NaN until a token has been read here
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
            total = total + result.sums[0].numpy()
            weight = weight + float(result.totals[0])
            last = as_tensor(result.hidden)
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
            self._state = result.state
            self._last = as_tensor(result.hidden)
            self._sum = self._sum + result.sums[0].numpy()
            self._total = self._total + float(result.totals[0])

    def _read(self, ids: np.ndarray) -> Result:
        """Read ids after the text so far, without changing the stream."""
        request = Request(
            ids, [len(ids) - 1], np.array([[0, len(ids)]]), state=self._state, keep_state=True
        )
        return self._model.engine.run([request])[0]


@dataclass(eq=False)
class _Reading:
    """A document that is being read. Its last passage starts at token `split`. Reading begins at
    token `begin`: 0, or where an earlier reading was saved.
    """

    ids: np.ndarray
    spans: np.ndarray
    starts: np.ndarray  # (P,) the first token of each passage
    ends: np.ndarray
    text: str
    # (p, D) the pooled hidden vectors of the passages before `begin`, later of those before `split`
    known: Tensor
    sum: Tensor  # (D,) fp64, sum of the weighted hidden vectors of the same tokens
    total: float = 0.0  # sum of their weights
    begin: int = 0
    split: int = 0
    state: State | None = None
    saved: bytes | None = None
    memory: Remembered | None = None


class StateReader(TextReader):
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
        count = TokenCount(options.progress)
        engine = self.model.engine
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
        model = self.model
        template = self.model.templates["document"]
        prompt = model.prompts.get("document", "")
        width = model.backbone.hidden_size
        encoded = template.encode_batch(
            model.tokenizer, "document", [prompt + text for text in texts]
        )
        for text, tokenized in zip(texts, encoded, strict=True):
            rendered = template.render(model.tokenizer, document=tokenized.ids)
            sentences = split_sentences(text, options.language)
            # character offsets in the document alone: those of the prompt are negative
            own = tokenized.shifted(-len(prompt))
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
            at = int(values["at"])
            count = len(values["known"])
            state = State(
                {name[6:]: tensor for name, tensor in values.items() if name.startswith("state.")},
                values["tokens"],
            )
            state.check(self.model.backbone.state_shapes())
            known = values["known"]
            total = float(values["total"])
            sums = values["sum"]
            depends = values["depends"].tolist()
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
        """Return the request for the tokens `begin` to `stop`. It pools each passage in them, the
        tokens after the last passage, and all of them.
        """
        inside = (reading.starts >= reading.begin) & (reading.ends <= stop)
        starts = reading.starts[inside] - reading.begin
        ends = reading.ends[inside] - reading.begin
        ids = reading.ids[reading.begin : stop]
        total = len(ids)
        starts = np.append(starts, [min(ends[-1], total - 1), 0])
        ends = np.append(ends, [total, total])
        request = Request(ids, state=reading.state, keep_state=keep_state, tag=reading)
        if self.embedder.pooling == "mean":
            return replace(request, ranges=np.stack([starts, ends], axis=1))
        return replace(request, positions=ends - 1)

    def _take(self, result: Result) -> Tensor:
        """Add a result to its document: the passages to `known`, and the total to `sum`. Return the
        pooled hidden vector of the tokens after the passages, (D,).
        """
        reading: _Reading = result.get().tag
        if self.embedder.pooling == "mean":
            pooled = as_tensor(result.means)
            reading.sum = reading.sum + result.sums[-1]
            reading.total = reading.total + float(result.totals[-1])
        else:
            pooled = as_tensor(result.hidden)
            # the hidden vector at the last token so far
            reading.sum = pooled[-1].double()
            reading.total = 1.0
        reading.known = torch.cat([reading.known, pooled[:-2]])
        return pooled[-2]

    def _remembered(self, reading: _Reading, state: State, after: Tensor) -> DocumentState:
        """Make the remembered document from the end state, as `Reranker.remember` does: with the
        mean of the hidden vectors from the document's first token on.
        """
        edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
        weight = np.asarray(self.model.weight)[reading.ids].astype(np.float64)
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
