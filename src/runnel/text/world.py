r"""The RWKV World tokenizer: greedy longest match of bytes, without merges or splitting into words.

The vocabulary file has one token per line: id, a Python literal of text or bytes, and its length in bytes. Ids are those of the
file, from 1; 0, which ends a document, is not in it. Every byte is a token, so there is no unknown token.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from runnel.errors import CheckpointError, errors_as
from runnel.files import write
from runnel.records import expect_text, utf8
from runnel.text.tokenizer import MOST_IDS, WORLD_FILE, Encoded, Marker, Tokenizer, skip_spaces, unpack_saved

END_OF_DOCUMENT = "<|endoftext|>"  # the authors' name of id 0
_PIECE_CHARS = 1 << 16  # per call: bounds the memory, long enough to hide the overhead


class WorldTokenizer(Tokenizer):
    """The RWKV World tokenizer, with the attributes of every `Tokenizer`."""

    adds_space = False
    marker_rows = 65536

    def __init__(self, source: str, *, begin: Marker = 0, end: Marker = 0) -> None:
        """Build from the content of `rwkv_vocab_v20230424.txt`."""
        from runnel.text import longest_match  # imports numba, which takes half a second

        tokens = _read_vocabulary(source)
        self._source = source
        self._match, self._trie = longest_match.match, longest_match.build(tokens)
        texts = ((token.decode("utf-8", "replace"), number) for token, number in tokens.items())
        self.vocabulary = {END_OF_DOCUMENT: 0, **{text: number for text, number in texts if "\ufffd" not in text}}
        self.vocab_size = max(tokens.values()) + 1
        self.begin_id, self.end_id = self.marker_id(begin), self.marker_id(end)

    @classmethod
    def read(cls, path: Path, *, begin: Marker = None, end: Marker = None) -> WorldTokenizer:
        """Read a vocabulary file. The markers are 0 by default: the end of a document, which also comes before each document."""
        with errors_as(CheckpointError, f"{path} is not UTF-8", UnicodeDecodeError, advice="download the file again"):
            source = path.read_bytes().decode()
        return cls(source, begin=0 if begin is None else begin, end=0 if end is None else end)

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary as it was read. Markers other than 0 are stored in the model's config.json."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / WORLD_FILE, self._source)

    def encode(self, text: str) -> Encoded:
        expect_text(text, "the text")
        if len(text) <= _PIECE_CHARS:
            return self.cut(text, 0, final=True)[0]
        return Encoded.join(self.encode_pieces([text]))

    def encode_inside(self, text: str) -> Encoded:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[number] for number in ids).decode("utf-8", "replace")

    @cached_property
    def _tokens(self) -> dict[int, bytes]:
        return {0: END_OF_DOCUMENT.encode()} | {number: token for token, number in _read_vocabulary(self._source).items()}

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        return [self.encode(text) for text in texts]

    def stream(self, position: int = 0) -> WorldStream:
        return WorldStream(self, position)

    def cut(self, text: str, used: int, final: bool) -> tuple[Encoded, int, int]:
        """Encode a text of whose first character `used` bytes belong to an earlier token.

        Unless the text ends here (`final`), tokens that more text could change are omitted. Returns (tokens, characters consumed,
        bytes consumed of the next character).
        """
        data = np.frombuffer(utf8(text), dtype=np.uint8)
        ids, starts, ends = np.empty(len(data), np.int32), np.empty(len(data), np.int64), np.empty(len(data), np.int64)
        count, stop, characters = self._match(data, used, final, self._trie, ids, starts, ends)
        ends = ends[:count].copy()  # the arrays are as long as the bytes
        done = Encoded(ids[:count].copy(), skip_spaces(text, starts[:count].copy(), ends), ends)
        lead = stop
        while lead < len(data) and data[lead] & 0xC0 == 0x80:
            lead -= 1
        return done, characters, stop - lead


class WorldStream:
    """Text fed piece by piece; see `TokenStream`. It keeps less than the longest token."""

    def __init__(self, tokenizer: WorldTokenizer, position: int = 0) -> None:
        self._tokenizer = tokenizer
        self._used = 0  # bytes of the first character of `text` that belong to an already returned token
        self.text = ""
        self.position = position

    def save(self) -> str:
        return json.dumps([self.text, self._used, self.position])

    def restore(self, saved: str) -> None:
        self.text, self._used, self.position = unpack_saved(
            saved, str, int, int, valid=lambda text, used, _: not used or used < len(text[:1].encode())
        )

    def feed(self, text: str) -> Encoded:
        expect_text(text, "the text")
        utf8(text)  # before any token is returned
        done: list[Encoded] = []
        for start in range(0, len(text), _PIECE_CHARS):
            whole = self.text + text[start : start + _PIECE_CHARS]
            encoded, characters, used = self._tokenizer.cut(whole, self._used, final=False)
            done.append(encoded.shifted(self.position))
            self.text, self._used, self.position = whole[characters:], used, self.position + characters
        return Encoded.join(done)

    def peek(self) -> Encoded:
        return self._tokenizer.cut(self.text, self._used, final=True)[0].shifted(self.position)

    def finish(self) -> Encoded:
        done = self.peek()
        self.text, self._used, self.position = "", 0, self.position + len(self.text)
        return done


def _read_vocabulary(source: str) -> dict[bytes, int]:
    tokens: dict[bytes, int] = {}
    for number, line in enumerate(source.rstrip().split("\n"), start=1):
        token, identifier = _read_line(line)
        if not token or not 1 <= identifier < MOST_IDS or tokens.setdefault(token, identifier) != identifier:
            problem = f"line {number} is {line[:60]!r}"
            break
    else:
        missing = [byte for byte in range(256) if bytes([byte]) not in tokens]
        if not missing and len(set(tokens.values())) == len(tokens):
            return tokens
        problem = f"an id has several tokens, or single bytes are no tokens: {bytes(missing[:1])!r}"
    expected = f"lines of an id below {MOST_IDS:,}, a quoted token that no other line has, and its length in bytes"
    raise CheckpointError(f"{WORLD_FILE}: {problem}; expected {expected}: download it again")


def _read_line(line: str) -> tuple[bytes, int]:
    """Return a token and its id; b"" for a line of another form."""
    try:
        before, rest = line.split(" ", 1)
        literal, after = rest.rsplit(" ", 1)
        identifier, length = int(before), int(after)  # int() drops the "\r" of a file with the line ends of Windows
        value = ast.literal_eval(literal)
        token = value.encode("utf-8") if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return b"", 0
    return (token, identifier) if isinstance(token, bytes) and len(token) == length else (b"", 0)
