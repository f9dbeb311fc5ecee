"""The embedding of a text that is still being written, in constant memory.

A recurrent model continues from its state. A model that reads passages keeps the text of the last passage, the only one that
appended text can change: memory depends on the longest sentence, not on the text.

D  width of hidden vectors   d  width of the vectors
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from runnel.backbones.encoder.layout import Layout, lay_out, whole_tokens
from runnel.errors import InputError, NumericalError
from runnel.files import write
from runnel.models.memory import damage_in_state, pack, unpack
from runnel.records import expect_text
from runnel.request import Array, Request
from runnel.text.sentences import SentenceTokens, read_sentences

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

_SETTLE_CHARS = 4096  # new text needed before looking for complete passages


class Stream(ABC):
    """The embedding of a text that is still being written, in constant memory.

    Call `feed` any number of times and `embedding` at any time: it equals `embedder.encode` of all text so far.
    """

    tokens: int  # read so far, with markers: all but the unsettled end of the text, or those of complete passages

    def __init__(self, embedder: Embedder, prompt: str = "") -> None:
        self._embedder, self._model = embedder, embedder.model
        self._sum = np.zeros(self._model.backbone.hidden_size)  # of hidden vectors so far
        self._empty = True  # nothing has been fed that has a token; the prompt does not count
        self._start(self._model.templates["document"].lead(self._model.tokenizer, "document") + prompt)

    def feed(self, text: str) -> Self:
        """Read more text. Words may be split between pieces."""
        expect_text(text, "the text")
        self._empty = self._empty and self._embedder.is_empty(text)
        self._add(text)
        return self

    def embedding(self) -> np.ndarray:
        """Return the vector of the text so far, float32 (d,), unit length.

        Raises:
            InputError: the stream has received no text with a token (`Embedder.is_empty`).
            NumericalError: the vector is NaN or infinite.
        """
        if self._empty:
            raise InputError(
                "this stream has received only whitespace, or characters without a token for this model; feed() some text first"
            )
        vector: np.ndarray = self._embedder.vectors(self._pooled())[0]
        if not np.isfinite(vector).all():
            raise NumericalError("the stream's vector is NaN or infinite; the weights or the saved stream may be damaged")
        return vector

    def save(self, path: str | Path) -> None:
        """Write everything needed to continue to one file (atomically)."""
        values = {"sum": self._sum, "empty": np.array(self._empty), **self._values()}
        write(Path(path), pack(values, self._model.backbone.fingerprint(), "stream"))

    @classmethod
    def load(cls, embedder: Embedder, path: str | Path) -> Self:
        """Continue a stream written by `save`.

        Raises:
            StateError: the file is damaged or was written by another model.
        """
        stream = cls(embedder)
        with damage_in_state(place := f"the saved stream {path}"):
            values = unpack(Path(path).read_bytes(), place, embedder.model.backbone.fingerprint(), "stream")
            stream._sum, stream._empty = values["sum"], bool(values["empty"])
            stream._restore(values)
        return stream

    @abstractmethod
    def _start(self, lead: str) -> None:
        """Begin with the text before the document."""

    @abstractmethod
    def _add(self, text: str) -> None: ...

    @abstractmethod
    def _pooled(self) -> Array:
        """Return what the head makes a vector of, (1, D)."""

    @abstractmethod
    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        """Return what `_restore` needs."""

    @abstractmethod
    def _restore(self, values: Mapping[str, np.ndarray]) -> None: ...


class PassageStream(Stream):
    """The stream of a model that reads passages."""

    def _start(self, lead: str) -> None:
        self.tokens = 0
        self._text = lead  # from the start of a passage
        self._look = _SETTLE_CHARS  # length of that text at which to look for complete passages

    def _add(self, text: str) -> None:
        self._text += text
        if len(self._text) >= self._look:
            self._settle()

    def _pooled(self) -> Array:
        ids = self._lay_out()[0].ids
        total = self._sum + self._read(ids) if len(ids) else self._sum
        return (total / (self.tokens + len(ids))).astype(np.float32)[None]

    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        return {"tokens": np.array(self.tokens), "text": self._text.encode("utf-8", "surrogatepass")}

    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        self._text = values["text"].tobytes().decode("utf-8", "surrogatepass")
        self.tokens, self._look = int(values["tokens"]), max(_SETTLE_CHARS, len(self._text))

    def _settle(self) -> None:
        layout, tokens = self._lay_out()
        # Not what could still be read as one: the last word may lose tokens when it is complete.
        whole = 0 if self.tokens else whole_tokens(self._model.backbone)
        if len(layout.passages) > 3:
            # A last sentence that is alone in its passage may then fit into the one before.
            last = -2 if layout.passages[-1] - layout.passages[-2] > 1 else -3
            if tokens.bounds[layout.passages[last]] > whole:
                self._sum = self._sum + self._read(layout.ids[: layout.edges[last]])
                self.tokens += int(layout.edges[last])
                self._text = self._text[tokens.spans[layout.passages[last], 0] :]
        self._look = len(self._text) + max(_SETTLE_CHARS, len(self._text))  # so that a very long sentence is not split too often

    def _lay_out(self) -> tuple[Layout, SentenceTokens]:
        """Lay out the text from the start of the last passage."""
        tokens = read_sentences(self._text, [self._model.tokenizer.encode(self._text)])
        backbone, markers = self._model.backbone, self._model.tokenizer.markers()
        return lay_out(tokens.ids, tokens.bounds, backbone, markers, begun=self.tokens > 0), tokens

    def _read(self, ids: np.ndarray) -> np.ndarray:
        """Return the sum (D,) fp64 of the hidden vectors of a row."""
        (result,) = self._model.engine.run([Request(ids, ranges=np.array([[0, len(ids)]]))])
        return np.asarray(result.sums[0])
