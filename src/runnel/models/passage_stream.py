"""The embedding of a text that is still being written, for a model that reads passages.

Appended text can change the last passage only. So all passages but the last are read as soon as they are complete, and the text
of the last one is kept: memory depends on the longest sentence, not on the text.

D  width of hidden vectors   R  tokens of a row, markers among them
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import InputError, NumericalError, StateError
from runnel.models.blocks import Row, lay_out
from runnel.records import expect_text
from runnel.request import Request
from runnel.text.sentence_tokens import SentenceTokens, read_sentences

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

_SETTLE_CHARS = 4096  # of new text before complete passages are looked for


class PassageStream:
    """The embedding of a text that arrives in pieces; the interface of `Stream`.

    `feed` any number of pieces, ask for `embedding()` at any time: it equals `embedder.encode` of all text so far. `tokens`
    counts what has been read for good, markers among them.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self._model = embedder, embedder.model
        self._sum = torch.zeros(self._model.backbone.hidden_size, dtype=torch.float64)
        self.tokens = 0
        self._text = self._model.templates["document"].lead(self._model.tokenizer, "document")  # from the start of a passage
        self._look = _SETTLE_CHARS  # length of that text at which complete passages are looked for

    def feed(self, text: str) -> PassageStream:
        """Read more text. Words may be split between pieces.

        Raises:
            InputError: not a string.
        """
        expect_text(text, "the text")
        self._text += text
        if len(self._text) >= self._look:
            self._settle()
        return self

    def embedding(self) -> np.ndarray:
        """float32 (d,), unit length.

        Raises:
            InputError: nothing but white space has been fed.
            NumericalError: the vector is NaN or infinite.
        """
        row, _ = self._lay_out()
        total, count = self._sum, self.tokens
        if row is not None:
            total, count = total + self._read(row.ids), count + len(row.ids)
        if not count:
            raise InputError("nothing but white space has been fed to this stream; feed() some text first")
        with torch.inference_mode():
            vector: np.ndarray = self._model.head("embed")((total / count).float()[None])[0].numpy()
        if not np.isfinite(vector).all():
            raise NumericalError("the stream's vector is NaN or infinite; the weights or the saved stream may be damaged")
        return vector

    def save(self, path: str | Path) -> None:
        """Write everything needed to continue later to one safetensors file (atomically)."""
        text = torch.tensor(list(self._text.encode("utf-8", "surrogatepass")), dtype=torch.uint8)
        state = State({}, torch.tensor([self.tokens]))
        state.save(path, fingerprint=self._model.backbone.fingerprint(), extra={"sum": self._sum, "text": text})

    @classmethod
    def load(cls, embedder: Embedder, path: str | Path) -> PassageStream:
        """Continue a stream written by `save`.

        Raises:
            StateError: damaged, or written by another model.
        """
        state, extra = State.load(path, fingerprint=embedder.model.backbone.fingerprint())
        stream = cls(embedder)
        parts = {name: tensor.dtype for name, tensor in extra.items()}
        fits = len(state) == 1 and not state.tensors and parts == {"sum": torch.float64, "text": torch.uint8}
        if not fits or extra["sum"].shape != stream._sum.shape:
            raise StateError(f"{path} does not hold one embedding stream of this model; read the text again")
        try:
            stream._text = bytes(extra["text"].flatten().tolist()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StateError(f"{path}: the pending text of the saved stream is damaged; read the text again") from error
        stream._sum, stream.tokens = extra["sum"], int(state.tokens[0])
        stream._look = max(_SETTLE_CHARS, len(stream._text))
        return stream

    def _settle(self) -> None:
        row, tokens = self._lay_out()
        if row is not None and len(row.passages) > 2:
            self._sum = self._sum + self._read(row.ids[: row.edges[-2]])
            self.tokens += int(row.edges[-2])
            self._text = self._text[tokens.spans[row.passages[-2], 0] :]
        self._look = len(self._text) + max(_SETTLE_CHARS, len(self._text))  # a very long sentence is not looked at too often

    def _lay_out(self) -> tuple[Row | None, SentenceTokens]:
        """The text from the start of a passage, if it has a token."""
        encoded = self._model.tokenizer.encode(self._text)
        tokens = read_sentences(self._text, [encoded])
        if not len(tokens.ids):
            return None, tokens
        return lay_out(tokens.ids, tokens.bounds, self._model.backbone, self._model.tokenizer, begun=self.tokens > 0), tokens

    def _read(self, ids: np.ndarray) -> Tensor:
        """The sum (D,) fp64 of the hidden vectors of a row (R,)."""
        (result,) = self._model.engine.run([Request(ids, ranges=np.array([[0, len(ids)]]))])
        return result.sums[0]
