"""The base class of all tokenizers: a text makes ids with character offsets, whole or as a stream.
`tokenizers.read_tokenizer` finds the tokenizer of a folder.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from runnel.checks import expect_choice, expect_text, utf8
from runnel.errors import CheckpointError, InputError, StateError

GROUP_CHARS = 1 << 18  # characters of one parallel batch
# the largest vocabulary accepted, because tables of its size are allocated; the largest published
# has 2^18
MOST_IDS = 1 << 24
_LOOK_CHARS = 64  # `is_empty` encodes as many characters at a time, until one has a token
_MOST_CHARS = 1 << 62  # the most characters of a stream: offsets are int64

WORLD_FILE = "rwkv_vocab_v20230424.txt"
LIBRARY_FILE = "tokenizer.json"

Marker = str | int | None  # a token by its text or its id; None: no marker
# by code point, whether it is whitespace; the last entry stands for all code points above
_SPACES = np.zeros(0x3001 + 1, dtype=bool)
_SPACES[[code for code in range(0x3001) if chr(code).isspace()]] = True


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Token ids with the characters that they cover.

    Attributes:
        ids: (n,) int32.
        starts, ends: (n,) int64, code points into the original text. A token never starts with
            whitespace unless it is all whitespace. Tokens that are parts of one character share its
            span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty() -> Encoded:
        return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def join(pieces: Iterable[Encoded]) -> Encoded:
        """Concatenate parts whose offsets already refer to one text."""
        pieces = [part for part in pieces if len(part)]
        if len(pieces) < 2:
            return pieces[0] if pieces else Encoded.empty()
        return Encoded(
            np.concatenate([part.ids for part in pieces]),
            np.concatenate([part.starts for part in pieces]),
            np.concatenate([part.ends for part in pieces]),
        )

    def slice(self, start: int, stop: int) -> Encoded:
        """Return tokens [start, stop), their offsets unchanged."""
        return Encoded(self.ids[start:stop], self.starts[start:stop], self.ends[start:stop])

    def shifted(self, by: int) -> Encoded:
        """Return the same tokens with `by` added to all offsets."""
        return Encoded(self.ids, self.starts + by, self.ends + by) if by else self


class Tokenizer(ABC):
    """A tokenizer that adds no special tokens and no padding by itself, and truncates nothing."""

    begin_id: int | None  # the markers of a text's start and end, None if the model has none
    end_id: int | None
    # token -> id, for all tokens that can be written as text, including special tokens
    vocabulary: Mapping[str, int]
    vocab_size: int  # one more than the largest id
    adds_space: bool  # whether the tokenizer itself puts a space before a text
    start: ClassVar[str | int]  # the context at the start of a text: see `cut`
    # rows of the published embedding tables; ids above the vocabulary and below this may be markers
    marker_rows: ClassVar[int] = 0

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files for `read_tokenizer`."""

    @abstractmethod
    def cut(self, text: str, context: Any, *, final: bool) -> tuple[Encoded, int, Any]:
        """Encode the text after a `context`; return (tokens, characters consumed, the context after
        them).

        A context is the part of the text before that a stream keeps; at first it is `start`. Unless
        the text ends here (`final`), tokens that more text could change are omitted.
        """

    def may_cut(self, text: str) -> bool:
        """Return whether `cut` may consume characters once this new text has come, with the
        character before it.
        """
        return True

    @abstractmethod
    def is_context(self, context: Any, text: str) -> bool:
        """Return whether a context that was read from a file is one, and can come before this
        text.
        """

    def encode(self, text: str) -> Encoded:
        """Encode a text of any length, without special tokens."""
        expect_readable(text)
        return self.cut(text, self.start, final=True)[0]

    def is_empty(self, text: str) -> bool:
        """Return whether a text has nothing to read: it is whitespace, or has no token, as U+200B
        or NUL in many models.
        """
        text = text.strip()
        return not any(
            len(self.encode(text[at : at + _LOOK_CHARS])) for at in range(0, len(text), _LOOK_CHARS)
        )

    @abstractmethod
    def encode_inside(self, text: str) -> Encoded:
        """Encode as if other text came before: the tokenizer adds no leading space."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, markers included; of a character whose bytes are
        incomplete, U+FFFD.
        """

    @abstractmethod
    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        """Encode every text, on all cores."""

    def stream(self) -> TokenStream:
        """Return a stream to feed text to."""
        return TokenStream(self)

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Encoded]:
        """Encode a text given in pieces, cut anywhere, in bounded memory: the tokens of the joined
        text, in order.

        Some of what is yielded may be empty.
        """
        stream = self.stream()
        for piece in pieces:
            for start in range(0, len(piece), GROUP_CHARS):
                yield stream.feed(piece[start : start + GROUP_CHARS])
        yield stream.finish()

    def token_id(self, token: str) -> int:
        """Return the id of a token, which may be special."""
        if token not in self.vocabulary:  # which is large: only then it is searched for the nearest
            expect_choice(token, self.vocabulary, "the token")
        return self.vocabulary[token]

    def marker_id(self, marker: Marker) -> int | None:
        if marker is None:
            return None
        if isinstance(marker, str):
            return self.token_id(marker)
        most = max(self.vocab_size, self.marker_rows)
        if not 0 <= marker < most:
            raise InputError(
                f"marker id {marker} is outside the vocabulary of {most}; give a token or a"
                " smaller id"
            )
        return marker

    def markers(self) -> tuple[int, int]:
        """Return the ids that begin and end a text or, for an encoder, a block."""
        if self.begin_id is None or self.end_id is None:
            raise CheckpointError(
                "an encoder needs a tokenizer with a begin and an end marker; this model's"
                " tokenizer lacks one"
            )
        return self.begin_id, self.end_id


def skip_spaces(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Move starts past leading whitespace, except in tokens that are all whitespace."""
    # the "." ends white space at the end of the text
    codes = np.minimum(
        np.frombuffer(f"{text}.".encode("utf-32-le"), dtype=np.uint32), len(_SPACES) - 1
    )
    if not _SPACES[codes[starts]].any():
        return starts
    visible = np.flatnonzero(~_SPACES[codes])
    moved = visible[np.searchsorted(visible, starts)]
    return np.where(moved < ends, moved, starts)


def expect_readable(text: str) -> None:
    """Raise an error for a value that is no text, or has lone surrogates."""
    expect_text(text, "the text")
    utf8(text)


class TokenStream:
    """Text fed piece by piece. Tokens are returned as soon as no later text can change them.

    Attributes:
        position: the offset of the first character of `text` in the stream.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.position = 0
        self._tokenizer = tokenizer
        self._context: Any = tokenizer.start
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """Text that is not yet returned as tokens. A token that is returned may have the first
        bytes of its first character.
        """
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def feed(self, text: str) -> Encoded:
        """Add text; return the tokens that are now final, with offsets into the whole stream."""
        expect_readable(text)
        seam = (self._parts[-1][-1:] if self._parts else "") + text
        self._parts.append(text)
        if not text or not self._tokenizer.may_cut(seam):
            return Encoded.empty()
        return self._take(final=False)

    def peek(self) -> Encoded:
        """Return the tokens of `text` as if the stream ended here, without changing the stream."""
        return self._tokenizer.cut(self.text, self._context, final=True)[0].shifted(self.position)

    def finish(self) -> Encoded:
        """Return the last tokens. The stream is then empty and can continue from its end."""
        done = self._take(final=True)
        self._context = self._tokenizer.start
        return done

    def _take(self, *, final: bool) -> Encoded:
        text = self.text
        done, consumed, self._context = self._tokenizer.cut(text, self._context, final=final)
        done = done.shifted(self.position)
        self._parts = [text[consumed:]]
        self.position += consumed
        return done

    def save(self) -> str:
        """Return all that is needed to continue later, as JSON text for `restore`."""
        return json.dumps([self.text, self._context, self.position])

    def restore(self, saved: str) -> None:
        """Continue a stream from the text that `save` returned; StateError if it is damaged."""
        kinds = [str, type(self._tokenizer.start), int]
        try:
            values = json.loads(saved)
            sound = (
                [type(value) for value in values] == kinds
                and 0 <= values[2] < _MOST_CHARS
                and self._tokenizer.is_context(values[1], values[0])
            )
            "".join(value for value in values if isinstance(value, str)).encode()
        except (TypeError, ValueError, RecursionError):
            sound = False
        if not sound:
            raise StateError("the pending text of the saved stream is damaged; read the text again")
        text, self._context, self.position = values
        self._parts = [text]
