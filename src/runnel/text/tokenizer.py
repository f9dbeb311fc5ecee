"""Text to token ids with character offsets, whole or as a stream: what every tokenizer does, and which one a folder holds.

    file in the folder                      class
    rwkv_vocab_v20230424.txt                `world.WorldTokenizer`: greedy longest match of bytes (RWKV)
    tokenizer.json                          `library.LibraryTokenizer`: whatever the tokenizers library runs
    tokenizer.model.v3, tokenizer.model     the same, converted from SentencePiece (`sentencepiece.convert`)

They are tried in this order. The first wins because nothing but RWKV uses it, and because the files that its folders carry for
other programs disagree with it; a tokenizer.json is read more faithfully than its SentencePiece twin, which lacks added tokens.

User text is text: strings such as "</s>" are encoded as ordinary characters, never as the special token.
"""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from runnel.errors import CheckpointError, InputError, StateError
from runnel.text.encoded import Encoded

_GROUP_CHARS = 1 << 18  # pieces of a text are collected until there are this many characters
MOST_IDS = 1 << 24  # of a vocabulary: tables of this many entries are made; the largest published has 2^18
_MOST_CHARS = 1 << 62  # in a stream: offsets are int64

WORLD_FILE, LIBRARY_FILE = "rwkv_vocab_v20230424.txt", "tokenizer.json"
SENTENCEPIECE_FILES = ("tokenizer.model.v3", "tokenizer.model")
TOKENIZER_FILES = (WORLD_FILE, LIBRARY_FILE, *SENTENCEPIECE_FILES)  # in order of preference

Marker = str | int | None


class TokenStream(Protocol):
    """Text fed bit by bit. Tokens come out as soon as no later text can change them.

    Attributes:
        text: what was fed but not yet given out as tokens, short unless the text has no place to cut. (The beginning of its
            first character may be given out already.)
        position: offset of the first character of `text`.
    """

    position: int

    @property
    def text(self) -> str: ...

    def feed(self, text: str) -> Encoded:
        """Add text; returns the tokens that are final now, with offsets into the whole stream."""

    def peek(self) -> Encoded:
        """The tokens of `text` if the stream ended here. The stream goes on unchanged."""

    def finish(self) -> Encoded:
        """The last tokens. The stream is empty afterwards and starts anew at its end."""

    def save(self) -> str:
        """All that is needed to go on later, as JSON text; `restore` takes it back."""

    def restore(self, saved: str) -> None:
        """Continue where `save` was called.

        Raises:
            StateError: `saved` is not what `save` of this kind of stream gives.
        """


class Tokenizer(ABC):
    """A tokenizer that adds no special tokens, truncates nothing and pads nothing. `Tokenizer.load` makes one.

    Attributes:
        begin_id, end_id: the markers of a text's start and end, None where the model has none.
        vocabulary: token -> id, special ones included, of all tokens that can be written as text.
        vocab_size: one more than the largest id.
        adds_space: the tokenizer puts a space in front of a text by itself.
    """

    begin_id: int | None
    end_id: int | None
    vocabulary: Mapping[str, int]
    vocab_size: int
    adds_space: bool

    @staticmethod
    def load(folder: str | Path, *, begin: Marker = None, end: Marker = None) -> Tokenizer:
        """Read the tokenizer of a model folder.

        Args:
            folder: a local model folder.
            begin, end: markers that replace those of the folder's files.

        Raises:
            CheckpointError: no tokenizer in the folder, or a file is damaged.
            InputError: a marker is not in the vocabulary.
        """
        # imported here because both are built on this class
        from runnel.text.library import LibraryTokenizer
        from runnel.text.world import WorldTokenizer

        path = tokenizer_file(folder)
        if path is None:
            others = ", ".join(name for name in TOKENIZER_FILES if name != LIBRARY_FILE)
            raise CheckpointError(f"no tokenizer.json in {folder}, nor {others}; put the tokenizer's file of this model there")
        return (WorldTokenizer if path.name == WORLD_FILE else LibraryTokenizer).read(path, begin=begin, end=end)

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files so that `load` gives it back."""

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether long texts can be cut, so that they are encoded in bounded memory."""

    @abstractmethod
    def encode(self, text: str) -> Encoded:
        """Ids and offsets of a text of any length. No special tokens are added.

        Raises:
            InputError: the text holds a lone surrogate, or a special token's text that this tokenizer can encode in no other way.
        """

    @abstractmethod
    def encode_inside(self, text: str) -> Encoded:
        """As `encode`, but as if other text stood before: no space is put in front by the tokenizer."""

    @abstractmethod
    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        """`encode` of every text, on all cores."""

    @abstractmethod
    def stream(self, position: int = 0) -> TokenStream:
        """A stream of text that is fed bit by bit. `position` is the offset of its first character."""

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Encoded]:
        """Encode a text that comes in pieces, cut anywhere, in bounded memory.

        Yields:
            Tokens in order; the offsets refer to the joined text. Joined, they equal `encode` of the joined text.
        """
        stream = self.stream()
        waiting: list[str] = []
        chars = 0
        for piece in pieces:
            for start in range(0, len(piece), _GROUP_CHARS):
                part = piece[start : start + _GROUP_CHARS]
                waiting.append(part)
                chars += len(part)
                if chars >= _GROUP_CHARS:
                    yield from _nonempty(stream.feed("".join(waiting)))
                    waiting, chars = [], 0
        yield from _nonempty(stream.feed("".join(waiting)))
        yield from _nonempty(stream.finish())

    def token_id(self, token: str) -> int:
        """The id of one token, special ones included.

        Raises:
            InputError: no such token; the message names the nearest.
        """
        number = self.vocabulary.get(token)
        if number is None:
            near = difflib.get_close_matches(token, [name for name in self.vocabulary if len(name) < 40], n=1)
            hint = f"; the nearest is {near[0]!r}" if near else ""
            raise InputError(f"no token {token!r} in this tokenizer's vocabulary of {self.vocab_size}{hint}")
        return number

    def marker_id(self, marker: Marker) -> int | None:
        """The id of a marker that is given as a token or an id.

        Raises:
            InputError: it is not in the vocabulary.
        """
        if marker is None or isinstance(marker, str):
            return None if marker is None else self.token_id(marker)
        if not 0 <= marker < self.vocab_size:
            raise InputError(f"marker id {marker} is outside the vocabulary of {self.vocab_size}; give a token or a smaller id")
        return marker


def tokenizer_file(folder: str | Path) -> Path | None:
    """The file that `Tokenizer.load` reads in this folder; None: it holds no tokenizer."""
    return next((path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()), None)


def unencodable(texts: Iterable[str], error: Exception) -> InputError:
    """The error for texts that have no UTF-8 form: says where the lone surrogate is."""
    for text in texts:
        found = re.search("[\ud800-\udfff]", text)
        if found:
            code = f"U+{ord(found[0]):04X}"
            advice = "read the file with the right encoding, or replace it by text.encode('utf-8', 'replace').decode()"
            return InputError(f"the text holds {code} (half of a surrogate pair) at character {found.start()}; {advice}")
    return InputError(f"the text cannot be encoded: {error}")


def unpack_saved(saved: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """Read the values that a stream's `save` put into a JSON list: of these types, text without surrogates, offsets in range.

    Raises:
        StateError: anything else.
    """
    try:
        values = json.loads(saved)
        "".join(value for value in values if isinstance(value, str)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged_stream() from error
    if not isinstance(values, list) or len(values) != len(kinds):
        raise damaged_stream()
    for value, kind in zip(values, kinds, strict=True):
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and not 0 <= value < _MOST_CHARS):
            raise damaged_stream()
    return values


def damaged_stream() -> StateError:
    """Make the error for a saved stream whose pending text makes no sense."""
    return StateError("the pending text of the saved stream is damaged; read the text again")


def _nonempty(encoded: Encoded) -> Iterator[Encoded]:
    if len(encoded):
        yield encoded
