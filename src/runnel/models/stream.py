"""The embedding of a text that is still being written, in constant memory.

A recurrent model continues from its state. A model that reads passages keeps the text of the last passage, the only one that
appended text can change: memory depends on the longest sentence, not on the text.

D  width of hidden vectors   d  width of the vectors
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import has_no_state
from runnel.backbones.encoder.layout import Layout, lay_out, whole_tokens
from runnel.backbones.state import State
from runnel.errors import InputError, NumericalError, StateError
from runnel.files import write
from runnel.models.container import pack, unpack
from runnel.records import expect_text
from runnel.request import Request, Result
from runnel.text.sentences import SentenceTokens, read_sentences

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

_SETTLE_CHARS = 4096  # new text needed before looking for complete passages
_DAMAGED = "the stream's vector is NaN or infinite; the weights or the saved stream may be damaged"
_ABOUT = "stream"
_EMPTY = "this stream has received only whitespace, or characters without a token for this model; feed() some text first"


class Stream:
    """The embedding of a text that is still being written, in constant memory.

    Call `feed` any number of times and `embedding` at any time: it equals `embedder.encode` of all text so far (the end
    marker and the last unsettled word are read on a copy of the state, so feeding can continue). `tokens` counts the tokens
    read so far.
    """

    def __init__(self, embedder: Embedder, prompt: str = "") -> None:
        if not embedder.model.backbone.recurrent:
            raise has_no_state(embedder.model.backbone.title)
        self._embedder = embedder
        self._model = embedder.model
        self._tokens = embedder.model.tokenizer.stream()
        self._state = embedder.model.backbone.new_state(1)
        width = embedder.model.backbone.hidden_size
        self._sum = torch.zeros(width, dtype=torch.float64)
        self._total = 0.0
        self._last = torch.full((1, width), torch.nan)  # hidden vector of the last token, once one has been read here
        template = embedder.model.templates["document"]
        self._rest = template.starting_at("document")
        self._advance(template.before("document").render(embedder.model.tokenizer).ids)
        self._empty = True  # nothing has been fed that has a token; the prompt does not count
        self._advance(self._tokens.feed(template.lead(embedder.model.tokenizer, "document") + prompt).ids)

    @property
    def tokens(self) -> int:
        """Tokens read so far, with the begin marker, without the unsettled end of the text."""
        return int(self._state.tokens[0])

    def feed(self, text: str) -> Stream:
        """Read more text. Words may be split between pieces."""
        expect_text(text, "the text")
        self._empty = self._empty and self._embedder.is_empty(text)
        self._advance(self._tokens.feed(text).ids)
        return self

    def embedding(self) -> np.ndarray:
        """Return the vector of the text so far, float32 (d,), unit length.

        Raises:
            InputError: the stream has received no text with a token (`Embedder.is_empty`).
            NumericalError: the vector is NaN or infinite.
        """
        model = self._model
        if self._empty:
            raise InputError(_EMPTY)
        tail = self._rest.render(model.tokenizer, document=self._tokens.peek().ids).ids
        total, weight, last = self._sum, self._total, self._last
        if len(tail):
            result = self._read(tail)
            total, weight, last = total + result.sums[0], weight + float(result.totals[0]), result.hidden
        return _vector(self._embedder, (total / weight).float()[None] if self._embedder.pooling == "mean" else last)

    def save(self, path: str | Path) -> None:
        """Write everything needed to continue to one file (atomically)."""
        values = {f"state.{name}": tensor for name, tensor in self._state.tensors.items()} | {"tokens": self._state.tokens}
        values |= {"sum": self._sum, "total": torch.tensor(self._total, dtype=torch.float64), "empty": torch.tensor(self._empty)}
        packed = pack({**values, "pending": self._tokens.save().encode()}, self._model.backbone.fingerprint(), _ABOUT)
        write(Path(path), packed)

    @classmethod
    def load(cls, embedder: Embedder, path: str | Path) -> Stream:
        """Continue a stream written by `save`.

        Raises:
            StateError: the file is damaged or was written by another model.
        """
        stream, values = cls(embedder), _read_file(embedder, path)
        try:
            state = {name: values[f"state.{name}"].to(tensor) for name, tensor in stream._state.tensors.items()}
            stream._state = State(state, values["tokens"]).check(embedder.model.backbone.state_shapes(), str(path))
            stream._sum, stream._total, stream._empty = values["sum"], float(values["total"]), bool(values["empty"])
            stream._tokens.restore(values["pending"].numpy().tobytes().decode())
        except (KeyError, UnicodeDecodeError) as error:
            raise StateError(f"{path} holds no embedding stream of this model ({error}); read the text again") from error
        return stream

    def _advance(self, ids: np.ndarray) -> None:
        if len(ids):
            result = self._read(ids)
            assert result.state is not None
            self._state, self._last = result.state, result.hidden
            self._sum, self._total = self._sum + result.sums[0], self._total + float(result.totals[0])

    def _read(self, ids: np.ndarray) -> Result:
        """Read ids after the text so far, without changing the stream."""
        request = Request(ids, [len(ids) - 1], np.array([[0, len(ids)]]), state=self._state, keep_state=True)
        try:
            return self._model.engine.run([request])[0]
        except NumericalError as error:
            raise NumericalError(_DAMAGED) from error


class PassageStream:
    """The interface of `Stream`; `tokens` counts the tokens of complete passages, including markers."""

    def __init__(self, embedder: Embedder, prompt: str = "") -> None:
        self._embedder, self._model, self._empty = embedder, embedder.model, True
        self._sum = torch.zeros(self._model.backbone.hidden_size, dtype=torch.float64)
        self.tokens = 0
        lead = self._model.templates["document"].lead(self._model.tokenizer, "document")
        self._text = lead + prompt  # from the start of a passage
        self._look = _SETTLE_CHARS  # length of that text at which to look for complete passages

    def feed(self, text: str) -> PassageStream:
        expect_text(text, "the text")
        self._text += text
        self._empty = self._empty and self._embedder.is_empty(text)
        if len(self._text) >= self._look:
            self._settle()
        return self

    def embedding(self) -> np.ndarray:
        if self._empty:
            raise InputError(_EMPTY)
        layout, _ = self._lay_out()
        total, count = self._sum, self.tokens
        if layout is not None:
            total, count = total + self._read(layout.ids), count + len(layout.ids)
        return _vector(self._embedder, (total / count).float()[None])

    def save(self, path: str | Path) -> None:
        values = {"sum": self._sum, "tokens": torch.tensor(self.tokens), "empty": torch.tensor(self._empty)}
        text = self._text.encode("utf-8", "surrogatepass")
        write(Path(path), pack({**values, "text": text}, self._model.backbone.fingerprint(), _ABOUT))

    @classmethod
    def load(cls, embedder: Embedder, path: str | Path) -> PassageStream:
        stream, values = cls(embedder), _read_file(embedder, path)
        try:
            stream._text = values["text"].numpy().tobytes().decode("utf-8", "surrogatepass")
            stream._sum, stream.tokens, stream._empty = values["sum"], int(values["tokens"]), bool(values["empty"])
        except (KeyError, UnicodeDecodeError) as error:
            raise StateError(f"{path} holds no embedding stream of this model ({error}); read the text again") from error
        stream._look = max(_SETTLE_CHARS, len(stream._text))
        return stream

    def _settle(self) -> None:
        layout, tokens = self._lay_out()
        # Not what could still be read as one: the last word may lose tokens when it is complete.
        whole = 0 if self.tokens else whole_tokens(self._model.backbone)
        if layout is not None and len(layout.passages) > 3:
            # A last sentence that is alone in its passage may then fit into the one before.
            last = -2 if layout.passages[-1] - layout.passages[-2] > 1 else -3
            if tokens.bounds[layout.passages[last]] > whole:
                self._sum = self._sum + self._read(layout.ids[: layout.edges[last]])
                self.tokens += int(layout.edges[last])
                self._text = self._text[tokens.spans[layout.passages[last], 0] :]
        self._look = len(self._text) + max(_SETTLE_CHARS, len(self._text))  # so that a very long sentence is not split too often

    def _lay_out(self) -> tuple[Layout | None, SentenceTokens]:
        """Lay out the text from the start of the last passage; None if it has no tokens."""
        encoded = self._model.tokenizer.encode(self._text)
        tokens = read_sentences(self._text, [encoded])
        if not len(tokens.ids):
            return None, tokens
        backbone, markers = self._model.backbone, self._model.tokenizer.markers()
        return lay_out(tokens.ids, tokens.bounds, backbone, markers, begun=self.tokens > 0), tokens

    def _read(self, ids: np.ndarray) -> Tensor:
        """Return the sum (D,) fp64 of the hidden vectors of a row."""
        (result,) = self._model.engine.run([Request(ids, ranges=np.array([[0, len(ids)]]))])
        return result.sums[0]


def _read_file(embedder: Embedder, path: str | Path) -> dict[str, Tensor]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StateError(f"cannot read the saved stream {path}: {error}") from error
    return unpack(data, f"the saved stream {path}", embedder.model.backbone.fingerprint(), _ABOUT)


def _vector(embedder: Embedder, pooled: Tensor) -> np.ndarray:
    """Run the head: (1, D) -> (d,) float32 of unit length."""
    vector: np.ndarray = embedder.vectors(pooled)[0]
    if not np.isfinite(vector).all():
        raise NumericalError(_DAMAGED)
    return vector
