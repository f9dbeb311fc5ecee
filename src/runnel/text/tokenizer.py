"""Tokenizers: text to ids with character offsets, whole or as a stream. `Tokenizer.load` finds the
tokenizer of a folder.

    file in the folder                      class
    rwkv_vocab_v20230424.txt                `world.WorldTokenizer`: greedy longest match of bytes
                                            (RWKV)
    tokenizer.json                          `LibraryTokenizer`: anything that the tokenizers library
                                            runs

They are tried in this order: the files for other programs in RWKV's folders disagree with the
first.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers

from runnel.batching import grouped
from runnel.checks import expect_choice, expect_text, utf8
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError, StateError, errors_as
from runnel.files import write
from runnel.text.cuts import Spec, adds_space, cut_pattern

# per call of the library: small enough to save memory, long enough to hide the overhead
_PIECE_CHARS = 1 << 14
_GROUP_CHARS = 1 << 18  # one parallel batch
# the largest vocabulary accepted, because tables of its size are allocated; the largest published
# has 2^18
MOST_IDS = 1 << 24
_LOOK_CHARS = 64  # of a text that are encoded together until one has a token
_MOST_CHARS = 1 << 62  # in a stream: offsets are int64

WORLD_FILE, LIBRARY_FILE = "rwkv_vocab_v20230424.txt", "tokenizer.json"
# not read: the error says what to do
_SENTENCEPIECE_FILES = ("tokenizer.model.v3", "tokenizer.model")

Marker = str | int | None
_SPACES = np.zeros(0x3001 + 1, dtype=bool)  # last entry: every code point above
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
        columns = (
            (part.ids for part in pieces),
            (part.starts for part in pieces),
            (part.ends for part in pieces),
        )
        return Encoded(*(np.concatenate(list(column)) for column in columns))

    def slice(self, start: int, stop: int) -> Encoded:
        """Return tokens [start, stop), their offsets unchanged."""
        return Encoded(self.ids[start:stop], self.starts[start:stop], self.ends[start:stop])

    def shifted(self, by: int) -> Encoded:
        """Return the same tokens with `by` added to all offsets."""
        return Encoded(self.ids, self.starts + by, self.ends + by) if by else self


class Tokenizer(ABC):
    """A tokenizer without special tokens, truncation or padding; made by `Tokenizer.load`."""

    begin_id: int | None  # the markers of a text's start and end, None if the model has none
    end_id: int | None
    # of all tokens that can be written as text, including special tokens
    vocabulary: Mapping[str, int]
    vocab_size: int  # one more than the largest id
    adds_space: bool  # whether the tokenizer itself puts a space before a text
    start: ClassVar[str | int]  # the context at the start of a text: see `cut`
    # of the published embedding tables; ids above the vocabulary and below this may be markers
    marker_rows: ClassVar[int] = 0

    @staticmethod
    def load(folder: str | Path, *, begin: Marker = None, end: Marker = None) -> Tokenizer:
        """Read the tokenizer of a model folder. `begin` and `end` are markers that replace those of
        the folder's files.
        """
        path = tokenizer_file(folder)
        if path is None:
            if other := _first_of(folder, _SENTENCEPIECE_FILES):
                problem = f"{folder} needs {LIBRARY_FILE}, because {other.name} is not read"
                code = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
                raise CheckpointError(
                    f"{problem}; take it from the model's repository, or have transformers write"
                    f" it: {code}"
                )
            raise CheckpointError(
                f"{folder} has no tokenizer: neither {LIBRARY_FILE} nor {WORLD_FILE}; put this"
                " model's file there"
            )
        if path.name == WORLD_FILE:
            # derives from this class, and imports numba
            from runnel.text.world import WorldTokenizer

            return WorldTokenizer.read(path, begin=begin, end=end)
        return LibraryTokenizer.read(path, begin=begin, end=end)

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files for `load`."""

    @abstractmethod
    def cut(self, text: str, context: Any, *, final: bool) -> tuple[Encoded, int, Any]:
        """Encode the text after a `context`; return (tokens, characters consumed, the context after
        them).

        A context is what a stream keeps of the text before, at first `start`. Unless the text ends
        here (`final`), tokens that more text could change are omitted.
        """

    def may_cut(self, text: str) -> bool:
        """Return whether `cut` may consume characters once this new text has come, with the
        character before it.
        """
        return True

    @abstractmethod
    def is_context(self, context: Any, text: str) -> bool:
        """Return whether a context that was read from a file is one, and can
        come before this text.
        """

    def encode(self, text: str) -> Encoded:
        """Encode a text of any length, without special tokens."""
        _check(text)
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
            for start in range(0, len(piece), _GROUP_CHARS):
                yield stream.feed(piece[start : start + _GROUP_CHARS])
        yield stream.finish()

    def token_id(self, token: str) -> int:
        """Return the id of a token, which may be special."""
        if token not in self.vocabulary:  # which is large: only then it is searched for the nearest
            expect_choice(token, self.vocabulary, "the token")
        return self.vocabulary[token]

    def marker_id(self, marker: Marker) -> int | None:
        if marker is None or isinstance(marker, str):
            return None if marker is None else self.token_id(marker)
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


def tokenizer_file(folder: str | Path) -> Path | None:
    """Return the file that `Tokenizer.load` reads in this folder; None if it has no tokenizer."""
    return _first_of(folder, (WORLD_FILE, LIBRARY_FILE))


def _first_of(folder: str | Path, names: Iterable[str]) -> Path | None:
    return next((path for name in names if (path := Path(folder) / name).is_file()), None)


def skip_spaces(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Move starts past leading whitespace, except in tokens that are all whitespace."""
    codes = np.minimum(
        np.frombuffer(f"{text}.".encode("utf-32-le"), dtype=np.uint32), len(_SPACES) - 1
    )
    if not _SPACES[codes[starts]].any():
        return starts
    visible = np.flatnonzero(~_SPACES[codes])
    moved = visible[np.searchsorted(visible, starts)]
    return np.where(moved < ends, moved, starts)


def _check(text: str) -> None:
    expect_text(text, "the text")
    utf8(text)


class TokenStream:
    """Text fed piece by piece. Tokens are returned as soon as no later text can change them.

    Attributes:
        position: of the first character of `text`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.position = tokenizer, 0
        self._context: Any = tokenizer.start
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """Text that is not yet returned as tokens. The first bytes of its first
        character may be.
        """
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def feed(self, text: str) -> Encoded:
        """Add text; return the tokens that are now final, with offsets into the whole stream."""
        _check(text)
        seam = (self._parts[-1][-1:] if self._parts else "") + text
        self._parts.append(text)
        return (
            self._take(final=False) if text and self._tokenizer.may_cut(seam) else Encoded.empty()
        )

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
        done, self._parts = done.shifted(self.position), [text[consumed:]]
        self.position += consumed
        return done

    def save(self) -> str:
        """Return all that is needed to continue later, as JSON text for `restore`."""
        return json.dumps([self.text, self._context, self.position])

    def restore(self, saved: str) -> None:
        kinds = [str, type(self._tokenizer.start), int]
        try:
            values = json.loads(saved)
            sound = [type(value) for value in values] == kinds
            sound = (
                sound
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


# ---- tokenizers of the tokenizers library --------------------------------------------------------
class LibraryTokenizer(Tokenizer):
    """A tokenizer of the tokenizers library (tokenizer.json).

    `encode`, `encode_batch`, `encode_pieces` and streams give the ids and offsets of one call of
    the library on the whole text. Long texts are cut only where `cuts.cut_pattern` shows it to be
    safe. Memory is in proportion to the longest stretch between two cuts; a tokenizer whose
    pipeline is not recognized has none.

    The few tokenizers that cannot encode a special token's text as ordinary characters (Unigram
    vocabularies have "</s>" as a piece) give the unknown token instead. Some treat the start of a
    text specially (a prefix space, stripping): every later part is encoded together with the
    character before the cut, whose tokens are dropped.
    """

    start = ""

    def __init__(
        self, source: str, *, begin: Marker = None, end: Marker = None, config: Spec | None = None
    ) -> None:
        """Build from the content of a `tokenizer.json`. `config`: the content of
        `tokenizer_config.json`, kept for `save`.
        """
        with _readable(LIBRARY_FILE):
            spec = json.loads(source)
            self._library = tokenizers.Tokenizer.from_str(source)
        if spec["model"].get("dropout"):  # a training option that makes encoding random
            self._library.model.dropout = None
        self._library.post_processor = None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._source, self._config = source, dict(config or {})
        self.vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.vocabulary.values(), default=-1) + 1
        if self.vocab_size > MOST_IDS:
            raise CheckpointError(
                f"tokenizer.json has the id {self.vocab_size - 1:,}; expected ids below"
                f" {MOST_IDS:,}"
            )
        model = spec["model"]
        self._unknown: int | None = self.vocabulary.get(
            model.get("unk_token") or "", model.get("unk_id")
        )
        self._special = np.zeros(self.vocab_size, dtype=bool)  # ids that text must never become
        special = [
            token["content"] for token in spec.get("added_tokens") or [] if token.get("special")
        ]
        self._special[[self.vocabulary[token] for token in special]] = True
        if self._unknown is not None:
            self._special[self._unknown] = False
        self.begin_id, self.end_id = self.marker_id(begin), self.marker_id(end)

    @classmethod
    def read(cls, path: Path, *, begin: Marker = None, end: Marker = None) -> LibraryTokenizer:
        """Read a tokenizer.json and, if its folder has them, the files that name its markers."""
        folder = path.parent
        files = (folder / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
        config = {
            name: value
            for file in files
            for name, value in read_model_json(file, default={}).items()
        }
        with _readable(path):
            source = path.read_text(encoding="utf-8")
        if begin is None:
            begin = _content(config.get("bos_token")) or _content(config.get("cls_token"))
        if end is None:
            end = _content(config.get("eos_token")) or _content(config.get("sep_token"))
        return cls(source, begin=begin, end=end, config=config)

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` as it was read and a `tokenizer_config.json` that keeps the
        markers.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / WORLD_FILE).exists():
            raise InputError(
                f"{folder} holds {WORLD_FILE}, which would be read in place of this tokenizer; use"
                " an empty folder"
            )
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._config}
        for keys, number in (
            (("bos_token", "cls_token"), self.begin_id),
            (("eos_token", "sep_token"), self.end_id),
        ):
            token = None if number is None else self._library.id_to_token(number)
            if token is not None and token != (
                _content(config.get(keys[0])) or _content(config.get(keys[1]))
            ):
                config[keys[0]] = token
        write(folder / LIBRARY_FILE, self._source)
        write(
            folder / "tokenizer_config.json",
            json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n",
        )

    # Only long texts and few templates need these, so the file is parsed again when they are first
    # used.

    @cached_property
    def _cuts(self) -> re.Pattern[str] | None:
        return cut_pattern(json.loads(self._source))

    @cached_property
    def adds_space(self) -> bool:  # type: ignore[override]
        return adds_space(json.loads(self._source))

    def cut(self, text: str, context: str, *, final: bool) -> tuple[Encoded, int, str]:
        """Encode in pieces cut at safe places; the context is the character before the text, empty
        at its start.
        """
        stop = len(text) if final else self._last_cut(text)
        pattern, bounds = self._cuts if stop > 2 * _PIECE_CHARS else None, [0]
        while pattern is not None and stop - bounds[-1] > 2 * _PIECE_CHARS:
            match = pattern.search(text, bounds[-1] + _PIECE_CHARS)
            if match is None or match.end() >= stop:
                break
            bounds.append(match.end())
        done: list[Encoded] = []
        for first in range(0, len(bounds), _GROUP_CHARS // _PIECE_CHARS):
            starts = bounds[first : first + _GROUP_CHARS // _PIECE_CHARS]
            stops = [*bounds[1:], stop][first : first + len(starts)]
            heads = [text[start - 1] if start else context for start in starts]
            parts = [
                head + text[start:end]
                for head, start, end in zip(heads, starts, stops, strict=True)
            ]
            done += self._encode_parts(parts, [len(head) for head in heads], starts)
        return Encoded.join(done), stop, text[stop - 1] if stop else context

    def may_cut(self, text: str) -> bool:
        return self._last_cut(text) > 0

    def _last_cut(self, text: str) -> int:
        """Return the last place where `text` can be cut; 0 for none."""
        pattern, end = self._cuts, 0
        if pattern is None:
            return 0
        for window in (256, len(text)):
            for match in pattern.finditer(text, max(0, len(text) - window)):
                end = match.end()
            if end:
                break
        return end

    def is_context(self, context: str, text: str) -> bool:
        cut = None if self._cuts is None else self._cuts.match(context + text)
        # else tokens could cross it
        return not context or (cut is not None and cut.end() == len(context))

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)

    def encode_inside(self, text: str) -> Encoded:
        if not self.adds_space:
            return self.encode(text)
        encoded = self._encode_parts(["x" + text], [0], [-1])[0]
        first = int(np.count_nonzero(encoded.starts < 0))
        # the text's start merged with the text before it
        if first and encoded.ends[:first].max() > 0:
            return self.encode(text)
        return Encoded(encoded.ids[first:], encoded.starts[first:], encoded.ends[first:])

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        done: list[Encoded] = []
        for long, some in itertools.groupby(texts, self._is_long):
            if long:
                done += map(self.encode, some)
            else:
                for group in grouped(some, len, _GROUP_CHARS):
                    done += self._encode_parts(group, [0] * len(group), [0] * len(group))
        return done

    def _is_long(self, text: str) -> bool:
        _check(text)
        return len(text) > 2 * _PIECE_CHARS and self._cuts is not None

    def _encode_parts(self, texts: list[str], guards: list[int], bases: list[int]) -> list[Encoded]:
        """Encode texts in one parallel call (the library releases Python's lock).

        Text i begins with `guards[i]` characters of context, whose tokens are dropped; `bases[i]`
        is the offset after them.
        """
        encodings = self._library.encode_batch(texts, add_special_tokens=False)
        return [
            self._unpack(*arguments)
            for arguments in zip(encodings, texts, guards, bases, strict=True)
        ]

    def _unpack(self, encoding: tokenizers.Encoding, text: str, guard: int, base: int) -> Encoded:
        ids = np.array(encoding.ids, dtype=np.int32)
        if not len(ids):
            return Encoded.empty()
        # faster than np.array
        offsets = np.fromiter(
            itertools.chain.from_iterable(encoding.offsets), np.int64, 2 * len(ids)
        )
        starts, ends = offsets[::2], offsets[1::2]
        if guard:
            first = int(np.count_nonzero(starts < guard))
            assert first == 0 or (ends[:first].max() <= guard), (
                "a token crosses a cut that was considered safe"
            )
            ids, starts, ends = ids[first:], starts[first:], ends[first:]
        for at in np.flatnonzero(self._special[ids]):
            if self._unknown is None:
                place = f"{text[starts[at] : ends[at]]!r} at character {starts[at] - guard + base}"
                raise InputError(
                    f"the text {place} is the special token {ids[at]}, never ordinary text here;"
                    " remove it"
                )
            ids[at] = self._unknown
        starts = skip_spaces(text, starts, ends)
        return Encoded(ids, starts + (base - guard), ends + (base - guard))


def _readable(file: object) -> AbstractContextManager[None]:
    """Turn errors of the tokenizers library, which raises bare Exception, into ours."""
    return errors_as(
        CheckpointError,
        f"{file} cannot be read",
        Exception,
        advice="expected a file of the tokenizers library",
    )


def _content(token: object) -> str | None:
    """Return the text of a special token, which the files store as a string or as an object."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
