"""How an encoder reads documents for an embedder: in passages of whole sentences.

`PassageReader` reads whole documents. `PassageStream` reads a text that arrives in pieces: it keeps
the text of the last one or two passages, the only ones that more text can change, and of all
passages before them only the sum of their hidden vectors, and the state if the encoder has one.

P  passages of a document      D  width of hidden vectors
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runnel.backbones.encoder.config import Form
from runnel.models.pocket.heads import normalize
from runnel.models.pocket.layout import Layout, lay_out, longest_block
from runnel.models.pocket.sentence_vectors import SentenceSums
from runnel.models.pocket.steps import read_passages
from runnel.models.reading import (
    Documents,
    ReadDocument,
    Reader,
    ReadOptions,
    Stream,
    passage_spans,
)
from runnel.request import Array, Request, Result, TokenCount
from runnel.text.ranked import RankedText
from runnel.text.sentences import (
    SentenceTokens,
    read_sentences,
    sentence_of_tokens,
    split_sentences,
)
from runnel.text.tokenizer import Encoded

_SETTLE_CHARS = 4096  # new text that a stream needs before it looks for complete passages


class PassageStream(Stream):
    """The stream of a model that reads passages.

    The text so far has two halves. The first is settled: its passages were read, `_sum` is the sum
    of their hidden vectors and `tokens` counts their tokens (both are fields of `Stream`). The
    second, `_text`, has not been read, because more text can change its passages.
    """

    def _start(self, lead: str) -> None:
        self.tokens = 0
        self._text = lead  # the text of the passages that are not settled
        self._settle_at = _SETTLE_CHARS  # the length of `_text` at which to call `_settle` next
        self._state: Any = None  # a `State` after the settled passages, if the encoder has one

    def _add(self, text: str) -> None:
        self._text += text
        if len(self._text) >= self._settle_at:
            self._settle()

    def _pooled(self) -> Array:
        ids = self._lay_out()[0].ids
        total = self._sum + np.asarray(self._read(ids).sums[0]) if len(ids) else self._sum
        return (total / (self.tokens + len(ids))).astype(np.float32)[None]

    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        state = {} if self._state is None else self._state.arrays()
        return {
            **state,
            "tokens": np.array([self.tokens]),
            "text": self._text.encode("utf-8", "surrogatepass"),
        }

    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        self._text = values["text"].tobytes().decode("utf-8", "surrogatepass")
        self.tokens = values["tokens"].item()
        self._settle_at = max(_SETTLE_CHARS, len(self._text))
        if self._model.backbone.recurrent and self.tokens:
            from runnel.backbones.state import State  # imports torch

            self._state = State.of(values, self._model.backbone.state_shapes())

    def _settle(self) -> None:
        """Read the passages that more text cannot change, and drop their text.

        More text makes the last sentence longer. Or shorter, in tokens: the last word may have
        fewer tokens once it is complete. So the last passage stays. If it is that one sentence
        alone, the sentence may come to fit into the passage before, which then stays too.

        As long as the whole text could still be read as one block, nothing is settled, because
        `lay_out` does not cut such a text into passages.
        """
        layout, tokens = self._lay_out()
        # `begun` texts are never one block (`lay_out`)
        longest_whole = 0 if self.tokens else longest_block(self._model.backbone)
        # `passages` has the first sentence of each passage and, at its end, the number of
        # sentences: more than 3 entries are at least 3 passages, and entry -2 is the last passage.
        if len(layout.passages) > 3:
            keep = -2 if layout.passages[-1] - layout.passages[-2] > 1 else -3
            if tokens.bounds[layout.passages[keep]] > longest_whole:
                result = self._read(layout.ids[: layout.edges[keep]])
                self._sum = self._sum + np.asarray(result.sums[0])
                self._state = result.state
                self.tokens += int(layout.edges[keep])
                self._text = self._text[tokens.spans[layout.passages[keep], 0] :]
        # Twice the text that stays, so that a very long sentence is not laid out too often.
        self._settle_at = len(self._text) + max(_SETTLE_CHARS, len(self._text))

    def _lay_out(self) -> tuple[Layout, SentenceTokens]:
        """Lay out the passages that are not settled."""
        tokens = read_sentences(self._text, [self._model.tokenizer.encode(self._text)])
        layout = lay_out(
            tokens.ids,
            tokens.bounds,
            self._model.backbone,
            self._model.tokenizer.markers(),
            begun=self.tokens > 0,
        )
        return layout, tokens

    def _read(self, ids: np.ndarray) -> Result:
        """Read ids after the settled passages: the sum (1, D) fp64 of their hidden vectors, and the
        state after them.
        """
        request = Request(ids, ranges=np.array([[0, len(ids)]]))
        if self._model.backbone.recurrent:
            request = replace(request, state=self._state, keep_state=True)
            (result,) = self._model.engine.run([request])
        else:
            (result,) = read_passages(self._model, [request], ("texts",), TokenCount(None))
        return result


class PassageReader(Reader):
    """A reader with an encoder; each passage gets the vector of its text alone, or, if the encoder
    carries a state, after the text before it.
    """

    stream = PassageStream

    def splits(self, row: np.ndarray) -> bool:
        return len(row) > (self.model.backbone.max_tokens or len(row))

    def lay_out(self, text: str, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        bounds = sentence_of_tokens(split_sentences(text), encoded)
        row = lay_out(encoded.ids, bounds, self.model.backbone, self.model.tokenizer.markers())
        return row.ids, row.places

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        """Read documents: for each, the vector of each passage and one of the whole text.

        In order: split and tokenize; lay out in passages; one `Request` for each document, which
        asks for the means (or the first or last tokens) of all passages; read; turn the pooled
        hidden vectors into vectors. With `options.remember` the same pass also fills
        `SentenceSums`, the vectors of sentences. They take all hidden vectors; if the model has
        layers of its own for sentences (`own_sentences`), these are of two forms (`steps.py`), side
        by side: "texts", then "sentences".
        """
        model = self.model
        ranked = [RankedText.of(document) for document in documents]
        texts = [document.text for document in ranked]
        encoded = model.templates["document"].encode_batch(model.tokenizer, "document", texts)
        requests = []
        count = TokenCount(options.progress)
        for document, pieces in zip(ranked, encoded, strict=True):
            tokens = read_sentences(
                document, [pieces], language=options.language, through=count.through
            )
            sums = SentenceSums(model, tokens, passages=model.backbone.own_sentences)
            row = sums.layout
            # the ids of each passage in the row, markers and prompt included
            blocks = np.stack([row.edges[:-1], row.edges[1:]], axis=1)
            ranges: np.ndarray | None = None
            positions: np.ndarray | None = None
            if self.embedder.pooling == "mean":
                ranges = np.concatenate([blocks, [[0, len(row.ids)]]])  # and the whole document
            else:
                positions = blocks[:, 0] if self.embedder.pooling == "cls" else blocks[:, 1] - 1
            spans = passage_spans(document.source, tokens.spans, row.passages)
            take = sums.take if options.remember else None
            requests.append(Request(row.ids, positions, ranges, take=take, tag=(spans, sums)))
        both = options.remember and model.backbone.own_sentences
        forms: tuple[Form, ...] = ("texts", "sentences") if both else ("texts",)
        count.total = sum(len(request.ids) for request in requests)
        results = list(read_passages(model, requests, forms, count))
        read = []
        is_mean = self.embedder.pooling == "mean"
        pooled = [result.means if is_mean else _with_whole(result) for result in results]
        for result, vectors in zip(results, self._vectors(pooled), strict=True):
            spans, sums = result.tag
            tokens_read = len(sums.layout.ids)
            read.append(
                ReadDocument(
                    vector=vectors[-1],
                    spans=spans,
                    passages=vectors[:-1],
                    tokens=tokens_read,
                    tokens_read=tokens_read,
                    saved=None,
                    memory=sums.result() if options.remember else None,
                )
            )
        return read


def _with_whole(result: Result) -> np.ndarray:
    """Return the pooled token of each passage and, for the document, their sum weighted by the
    passages' tokens, (P+1, D): it has the direction of the mean, and the head normalizes it.
    """
    tokens = np.asarray(result.hidden)
    _, sums = result.tag
    counts = np.diff(sums.layout.edges).astype(np.float32)
    return np.concatenate([tokens, counts[None] @ normalize(tokens)])
