"""Tokenizers: text to ids with character offsets, whole or as a stream. `Tokenizer.load` finds the tokenizer of a folder.

    file in the folder                      class
    rwkv_vocab_v20230424.txt                `world.WorldTokenizer`: greedy longest match of bytes (RWKV)
    tokenizer.json                          `library.LibraryTokenizer`: anything that the tokenizers library runs
    tokenizer.model.v3, tokenizer.model     the same, converted from SentencePiece (`sentencepiece.convert`)

They are tried in this order: the files for other programs in RWKV's folders disagree with the first, and a SentencePiece model
lacks the added tokens of its tokenizer.json.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from runnel.errors import CheckpointError, InputError, StateError
from runnel.records import expect_choice

_GROUP_CHARS = 1 << 18  # of a text that are encoded in one parallel batch
MOST_IDS = 1 << 24  # the largest vocabulary accepted, because tables of its size are allocated; the largest published has 2^18
_LOOK_CHARS = 64  # of a text that are encoded together until one has a token
_MOST_CHARS = 1 << 62  # in a stream: offsets are int64

WORLD_FILE, LIBRARY_FILE = "rwkv_vocab_v20230424.txt", "tokenizer.json"
SENTENCEPIECE_FILES = ("tokenizer.model.v3", "tokenizer.model")
TOKENIZER_FILES = (WORLD_FILE, LIBRARY_FILE, *SENTENCEPIECE_FILES)  # in order of preference

Marker = str | int | None
_SPACES = np.zeros(0x3001 + 1, dtype=bool)  # last entry: every code point above
_SPACES[[code for code in range(0x3001) if chr(code).isspace()]] = True


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Token ids with the characters that they cover.

    Attributes:
        ids: (n,) int32.
        starts, ends: (n,) int64, code points into the original text. A token never starts with whitespace unless it is all
            whitespace. Tokens that are parts of one character share its span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty() -> Encoded:
        """Return no tokens."""
        return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def join(pieces: Iterable[Encoded]) -> Encoded:
        """Concatenate parts whose offsets already refer to one text."""
        pieces = [part for part in pieces if len(part)]
        if len(pieces) < 2:
            return pieces[0] if pieces else Encoded.empty()
        columns = ((part.ids for part in pieces), (part.starts for part in pieces), (part.ends for part in pieces))
        return Encoded(*(np.concatenate(list(column)) for column in columns))

    def slice(self, start: int, stop: int) -> Encoded:
        """Return tokens [start, stop), their offsets unchanged."""
        return Encoded(self.ids[start:stop], self.starts[start:stop], self.ends[start:stop])

    def shifted(self, by: int) -> Encoded:
        """Return the same tokens with `by` added to all offsets."""
        return Encoded(self.ids, self.starts + by, self.ends + by) if by else self


class TokenStream(Protocol):
    """Text fed piece by piece. Tokens are returned as soon as no later text can change them."""

    position: int  # of the first character of `text`

    @property
    def text(self) -> str:
        """Text that is not yet returned as tokens. The first bytes of its first character may be."""

    def feed(self, text: str) -> Encoded:
        """Add text; return the tokens that are now final, with offsets into the whole stream."""

    def peek(self) -> Encoded:
        """Return the tokens of `text` as if the stream ended here, without changing the stream."""

    def finish(self) -> Encoded:
        """Return the last tokens. The stream is then empty and can continue from its end."""

    def save(self) -> str:
        """Return all that is needed to continue later, as JSON text for `restore`."""

    def restore(self, saved: str) -> None:
        """Continue where `save` was called."""


class Tokenizer(ABC):
    """A tokenizer without special tokens, truncation or padding; made by `Tokenizer.load`."""

    begin_id: int | None  # the markers of a text's start and end, None if the model has none
    end_id: int | None
    vocabulary: Mapping[str, int]  # of all tokens that can be written as text, including special tokens
    vocab_size: int  # one more than the largest id
    adds_space: bool  # whether the tokenizer itself puts a space before a text
    marker_rows: ClassVar[int] = 0  # of the published embedding tables; ids above the vocabulary and below this may be markers

    @staticmethod
    def load(folder: str | Path, *, begin: Marker = None, end: Marker = None) -> Tokenizer:
        """Read the tokenizer of a model folder. `begin` and `end` are markers that replace those of the folder's files."""
        # imported here because both derive from this class
        from runnel.text.library import LibraryTokenizer
        from runnel.text.world import WorldTokenizer

        path = tokenizer_file(folder)
        if path is None:
            others = ", ".join(name for name in TOKENIZER_FILES if name != LIBRARY_FILE)
            raise CheckpointError(f"no tokenizer.json in {folder}, nor {others}; put this model's tokenizer file there")
        return (WorldTokenizer if path.name == WORLD_FILE else LibraryTokenizer).read(path, begin=begin, end=end)

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files for `load`."""

    @abstractmethod
    def encode(self, text: str) -> Encoded:
        """Encode a text of any length, without special tokens."""

    def is_empty(self, text: str) -> bool:
        """Return whether a text has nothing to read: it is whitespace, or has no token, as U+200B or NUL in many models."""
        text = text.strip()
        return not any(len(self.encode(text[at : at + _LOOK_CHARS])) for at in range(0, len(text), _LOOK_CHARS))

    @abstractmethod
    def encode_inside(self, text: str) -> Encoded:
        """Encode as if other text came before: the tokenizer adds no leading space."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, markers included; of a character whose bytes are incomplete, U+FFFD."""

    @abstractmethod
    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        """Encode every text, on all cores."""

    @abstractmethod
    def stream(self, position: int = 0) -> TokenStream:
        """Return a stream to feed text to. `position` is the offset of its first character."""

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Encoded]:
        """Encode a text given in pieces, cut anywhere, in bounded memory: the tokens of the joined text, in order.

        Some of what is yielded may be empty.
        """
        stream = self.stream()
        for piece in pieces:
            for start in range(0, len(piece), _GROUP_CHARS):
                yield stream.feed(piece[start : start + _GROUP_CHARS])
        yield stream.finish()

    def token_id(self, token: str) -> int:
        """Return the id of a token, which may be special."""
        if token not in self.vocabulary:  # which is large: only then it is searched for the nearest
            expect_choice(token, self.vocabulary, "the token")
        return self.vocabulary[token]

    def marker_id(self, marker: Marker) -> int | None:
        """Return the id of a marker given as a token or an id."""
        if marker is None or isinstance(marker, str):
            return None if marker is None else self.token_id(marker)
        most = max(self.vocab_size, self.marker_rows)
        if not 0 <= marker < most:
            raise InputError(f"marker id {marker} is outside the vocabulary of {most}; give a token or a smaller id")
        return marker

    def markers(self) -> tuple[int, int]:
        """Return the ids that begin and end a text or, for an encoder, a block."""
        if self.begin_id is None or self.end_id is None:
            raise CheckpointError("an encoder needs a tokenizer with a begin and an end marker; this model's tokenizer lacks one")
        return self.begin_id, self.end_id


def tokenizer_file(folder: str | Path) -> Path | None:
    """Return the file that `Tokenizer.load` reads in this folder; None if it has no tokenizer."""
    return next((path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()), None)


def skip_spaces(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Move starts past leading whitespace, except in tokens that are all whitespace."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    within = np.flatnonzero(starts < len(codes))
    leading = within[_is_space(codes[starts[within]])]
    if not len(leading):
        return starts
    moved, stops = starts[leading], ends[leading]
    going = np.arange(len(leading))  # tokens that had only whitespace so far
    while len(going):
        moved[going] += 1
        going = going[moved[going] < stops[going]]
        going = going[_is_space(codes[moved[going]])]
    starts = starts.copy()
    starts[leading] = np.where(moved < stops, moved, starts[leading])
    return starts


def _is_space(codes: np.ndarray) -> np.ndarray:
    return _SPACES[np.minimum(codes, len(_SPACES) - 1)]


def unpack_saved(saved: str, *kinds: type, valid: Callable[..., bool]) -> list[Any]:
    """Read the JSON list of a stream's `save`: values of these kinds, UTF-8, offsets in range, and `valid`."""
    try:
        values = json.loads(saved)
        "".join(value for value in values if isinstance(value, str)).encode()
        offsets = [value for value in values if isinstance(value, int)]
        sound = [type(value) for value in values] == list(kinds) and all(0 <= value < _MOST_CHARS for value in offsets)
        sound = sound and valid(*values)
    except (TypeError, ValueError, RecursionError):
        sound = False
    if not sound:
        raise StateError("the pending text of the saved stream is damaged; read the text again")
    return list(values)
