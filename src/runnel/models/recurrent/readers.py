"""How a recurrent model reads texts for an embedder: `StateReader` reads whole documents, and
`StateStream` a text that is still being written and arrives in pieces.

Every token of a document is read once. The engine reads a long document in two runs, up to its last
passage and from there to its end. The state between the runs is saved: if text is appended to the
document later, only the last passage may change, and reading resumes before it.

A pooled hidden vector is a mean of hidden vectors, each weighted by the model's weight of its token
id (pooling "mean"), or the hidden vector of the last token (any other pooling). The embedder's head
turns it into a vector.

P  passages of a document      p  passages read so far      D  width of hidden vectors
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
from runnel.request import Request, Result, TokenCount, as_tensor
from runnel.text.kinds import text_of
from runnel.text.sentences import passage_bounds, sentence_of_tokens, split_sentences

log = logging.getLogger("runnel")


class StateStream(Stream):
    """The stream of a recurrent model. The last word, which may go on, and the end marker are read
    on a copy of the state.

    `Stream` (`models/reading.py`) holds `_embedder`, its `_model`, and `_sum` (D,) fp64, the
    weighted sum of the hidden vectors read so far. It calls the hooks below: `_start` once, `_add`
    for each `feed`, `_pooled` for `embedding`, `_values` for `save` and `_restore` for `load`.
    """

    def _start(self, lead: str) -> None:
        backbone = self._model.backbone
        self._tokens = self._model.tokenizer.stream()
        self._state = backbone.new_state(1)  # after the words that cannot change any more
        self._total = 0.0  # the sum of the weights in `_sum`
        # (1, D) the hidden vector of the last token; NaN until a token has been read here
        self._last = torch.full((1, len(self._sum)), torch.nan)
        template = self._model.templates["document"]
        self._rest = template.starting_at("document")  # the document's place, and the end marker
        self._advance(template.before("document").render(self._model.tokenizer).ids)
        self._add(lead)  # the prompt, and a space before it if the template has one

    @property
    def tokens(self) -> int:  # type: ignore[override]
        return int(self._state.tokens[0])

    def _add(self, text: str) -> None:
        # `feed` returns the tokens of the words that are complete, and keeps the last word
        self._advance(self._tokens.feed(text).ids)

    def _pooled(self) -> Tensor:  # of torch's heads
        tail = self._rest.render(self._model.tokenizer, document=self._tokens.peek().ids).ids
        weighted_sum, total, last = self._sum, self._total, self._last
        if len(tail):
            result = self._read(tail)
            weighted_sum = weighted_sum + result.sums[0].numpy()
            total = total + float(result.totals[0])
            last = as_tensor(result.hidden)
        return (
            torch.from_numpy((weighted_sum / total)[None]).float()
            if self._embedder.pooling == "mean"
            else last
        )

    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        return {
            **self._state.arrays(),
            "total": np.array(self._total),
            "pending": self._tokens.save().encode(),
        }

    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        self._state = State.of(values, self._model.backbone.state_shapes())
        self._total = float(values["total"])
        self._tokens.restore(values["pending"].tobytes().decode())

    def _advance(self, ids: np.ndarray) -> None:
        """Read ids after the text so far, and keep the state after them."""
        if len(ids):
            result = self._read(ids)
            assert result.state is not None
            self._state = result.state
            self._last = as_tensor(result.hidden)
            self._sum = self._sum + result.sums[0].numpy()
            self._total = self._total + float(result.totals[0])

    def _read(self, ids: np.ndarray) -> Result:
        """Read ids after the text so far, without changing the stream: the last hidden vector, and
        the weighted sum of all.
        """
        request = Request(
            ids,
            positions=[len(ids) - 1],
            ranges=np.array([[0, len(ids)]]),
            state=self._state,
            keep_state=True,
        )
        return self._model.engine.run([request])[0]


@dataclass(eq=False)
class _Reading:
    """A document that is being read, with what has been read of it: nothing, or the passages of an
    earlier reading; then all passages before `split`; then everything.
    """

    ids: np.ndarray
    spans: np.ndarray  # (P, 2) the characters of each passage
    starts: np.ndarray  # (P,) the first token of each passage
    ends: np.ndarray  # (P,)
    text: str
    pooled: Tensor  # (p, D) the pooled hidden vectors of the passages read so far
    sum: Tensor  # (D,) fp64, sum of the weighted hidden vectors of all tokens read so far
    total: float = 0.0  # sum of their weights
    begin: int = 0  # the token at which the next run begins
    split: int = 0  # the first token of the last passage; 0: read in one run, nothing is saved
    state: State | None = None  # the state before token `begin`; None: zeros
    saved: bytes | None = None  # the state before token `split`, packed
    memory: Remembered | None = None


class StateReader(TextReader):
    """A reader with a recurrent model."""

    stream = StateStream

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        # 1. Lay out the documents, and resume those that begin like an earlier reading.
        readings = list(self._prepare(list(map(text_of, documents)), options))
        for reading, earlier in zip(readings, saved, strict=True):
            if earlier is not None:
                self._resume(reading, earlier)
        tokens_read = [len(reading.ids) - reading.begin for reading in readings]
        progress = TokenCount(options.progress)
        engine = self.model.engine
        # 2. The first run: long documents up to their last passage. A result's tag is its reading.
        first = [reading for reading in readings if reading.split > reading.begin]
        for result in engine.map(
            [self._request(each, each.split, keep_state=True) for each in first], progress.add
        ):
            self._take(result)
            result.tag.state, result.tag.begin = result.state, result.tag.split
        # 3. Save these states.
        for reading in readings:
            if reading.split:
                reading.saved = self._pack(reading)
        # 4. The second run: all documents to their ends.
        requests = [
            self._request(each, len(each.ids), keep_state=options.remember) for each in readings
        ]
        for result in engine.map(requests, progress.add):
            after = self._take(result)
            if result.state is not None:
                result.tag.memory = self._remembered(result.tag, result.state, after)
        # 5. The head turns the pooled vectors of the passages, and of the document, into vectors.
        pooled = [
            torch.cat([each.pooled, (each.sum / each.total).float()[None]]) for each in readings
        ]
        return [
            ReadDocument(
                vector=vectors[-1],
                spans=each.spans,
                passages=vectors[:-1],
                tokens=len(each.ids),
                tokens_read=count,
                saved=each.saved,
                memory=each.memory,
            )
            for each, vectors, count in zip(
                readings, self._vectors(pooled), tokens_read, strict=True
            )
        ]

    def _prepare(self, texts: Sequence[str], options: ReadOptions) -> Iterator[_Reading]:
        """Tokenize all texts, in one call to the tokenizer, which uses all cores, and lay each out
        in passages.
        """
        model = self.model
        template = self.model.templates["document"]
        prompt = model.prompts.get("document", "")
        width = model.backbone.hidden_size
        encoded = template.encode_batch(
            model.tokenizer, "document", [prompt + text for text in texts]
        )
        for text, tokenized in zip(texts, encoded, strict=True):
            rendered = template.render(model.tokenizer, document=tokenized.ids)
            sentences = split_sentences(
                text, options.language, through=TokenCount(options.progress).through
            )
            # character offsets in the document alone: the offsets of the prompt are negative
            own = tokenized.shifted(-len(prompt))
            bounds = sentence_of_tokens(sentences, own)
            # the prompt's tokens belong to no sentence: the first one begins after them
            bounds[0] = np.searchsorted(own.starts, 0)
            # (P+1,) the first sentence of each passage, and the number of sentences
            chosen = passage_bounds(bounds, options.passage_tokens)
            # (P+1,) the bounds of the passages among the rendered ids
            tokens = bounds[chosen] + rendered.slices["document"].start
            reading = _Reading(
                ids=rendered.ids,
                spans=passage_spans(text, sentences, chosen),
                starts=tokens[:-1],
                ends=tokens[1:],
                text=text,
                pooled=torch.zeros(0, width),
                sum=torch.zeros(width, dtype=torch.float64),
            )
            passages = len(chosen) - 1
            if len(rendered.ids) >= options.save_from and passages > 1:
                reading.split = int(tokens[-2])  # the start of the last passage
            yield reading

    def _resume(self, reading: _Reading, saved: bytes) -> None:
        """Continue from an earlier reading, packed by `_pack`, if this document begins like the
        earlier one and the saved data is not damaged.
        """
        try:
            values = unpack(
                saved, "the state of an earlier reading", self.model.backbone.fingerprint()
            )
            state = State.of(values, self.model.backbone.state_shapes())
            at = int(values["at"][0])
            count = len(values["known"])
            pooled = torch.from_numpy(values["known"])
            total = float(values["total"][0])
            sums = torch.from_numpy(values["sum"])
            depends = values["depends"].tolist()
        except (StateError, KeyError, IndexError) as error:
            log.warning("%s; reading the document from the start", error)
            return
        # The saved passages end where a passage of this document starts, before its last one: at
        # passage `count`, if it has as many.
        same_passages = (
            at <= reading.split and reading.starts[min(count, len(reading.starts) - 1)] == at
        )
        if same_passages and depends == _dependencies(reading, at, count):
            reading.state, reading.begin = state, at
            reading.pooled, reading.sum, reading.total = pooled, sums, total

    def _pack(self, reading: _Reading) -> bytes:
        """Pack what `_resume` needs, when `reading` has been read up to its split: the state, its
        number of "tokens", the pooled vectors of the "known" passages, the "sum" and "total" of all
        tokens; "at", the split; "depends", a digest of all that these depend on.
        """
        assert reading.state is not None
        depends = _dependencies(reading, reading.split, len(reading.pooled))
        return pack(
            {
                **reading.state.arrays(),
                "known": reading.pooled.numpy(),
                "sum": reading.sum.numpy(),
                "at": np.array([reading.split]),
                "total": np.array([reading.total]),
                "depends": np.array(depends),
            },
            self.model.backbone.fingerprint(),
        )

    def _request(self, reading: _Reading, stop: int, *, keep_state: bool) -> Request:
        """Make the request for the tokens `begin` to `stop`. Its result has a row for each passage
        in them, then a row for the rest, the tokens after the last passage, and one for all of
        them. If there is no rest, as before the split, its row is the last token alone.

            begin | passage 0 | passage 1 | ... | rest | stop      rows: 0, 1, ..., rest, all
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
        """Add a result of `_request` to its document: its passages to `pooled`, and all its tokens
        to `sum` and `total`. Return the pooled hidden vector of the rest, (D,).
        """
        reading: _Reading = result.get().tag
        if self.embedder.pooling == "mean":
            pooled = as_tensor(result.means)
            reading.sum = reading.sum + result.sums[-1]
            reading.total = reading.total + float(result.totals[-1])
        else:
            pooled = as_tensor(result.hidden)
            # the hidden vector of the last token so far, with the weight 1
            reading.sum = pooled[-1].double()
            reading.total = 1.0
        reading.pooled = torch.cat([reading.pooled, pooled[:-2]])
        return pooled[-2]

    def _remembered(self, reading: _Reading, state: State, after: Tensor) -> DocumentState:
        """Make the remembered document from the end state, as `Reranker.remember` does: with the
        mean of the hidden vectors from the document's first token on. `after` (D,) is the mean of
        the rest, the tokens after the last passage. It is asked for only where `Reranker.shares` is
        true, so the pooling is "mean".
        """
        # The mean of the passages' means and of the rest, each weighted by the weights of its
        # tokens. `unique` drops the last edge if there is no rest.
        edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
        weight = np.asarray(self.model.weight)[reading.ids].astype(np.float64)
        totals = torch.from_numpy(np.add.reduceat(weight, edges[:-1]))
        parts = torch.cat([reading.pooled, after[None]])[: len(totals)].double()
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
