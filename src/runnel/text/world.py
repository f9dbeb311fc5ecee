r"""The RWKV World tokenizer: greedy longest match of bytes, without merges or splitting into words.

The vocabulary file has one token per line: id, a Python literal of text or bytes, and its length in
bytes. Ids are the file's, from 1; 0, which ends a document, is not in it. Every byte is a
token, so there is no unknown token.

The tokens are a trie in flat arrays, a hash table from (node, byte) to node with open addressing: a
row of `edges` is the key node * 256 + byte (-1: free) and the node it leads to. `tokens` holds the
id of the token that ends at a node (-1: none). Node 0 is the root.

B  bytes of a text in UTF-8
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from runnel.checks import utf8
from runnel.errors import CheckpointError, errors_as
from runnel.files import write
from runnel.text.tokenizer import MOST_IDS, WORLD_FILE, Encoded, Marker, Tokenizer, skip_spaces

END_OF_DOCUMENT = "<|endoftext|>"  # the authors' name of id 0
_PIECE_CHARS = 1 << 16  # per call: bounds the memory, long enough to hide the overhead


class WorldTokenizer(Tokenizer):
    """The RWKV World tokenizer, with the attributes of every `Tokenizer`."""

    adds_space = False
    start = 0  # the context of `cut`: no byte belongs to an earlier token
    marker_rows = 65536

    def __init__(self, source: str, *, begin: Marker = 0, end: Marker = 0) -> None:
        """Build from the content of `rwkv_vocab_v20230424.txt`."""
        tokens = _read_vocabulary(source)
        self._source = source
        self._trie = _build(tokens)
        texts = ((token.decode("utf-8", "replace"), number) for token, number in tokens.items())
        self.vocabulary = {
            END_OF_DOCUMENT: 0,
            **{text: number for text, number in texts if "\ufffd" not in text},
        }
        self.vocab_size = max(tokens.values()) + 1
        self.begin_id = self.marker_id(begin)
        self.end_id = self.marker_id(end)

    @classmethod
    def read(cls, path: Path, *, begin: Marker = None, end: Marker = None) -> WorldTokenizer:
        """Read a vocabulary file. The markers are 0 by default: the end of a document, which also
        comes before each document.
        """
        with errors_as(
            CheckpointError,
            f"{path} is not UTF-8",
            UnicodeDecodeError,
            advice="download the file again",
        ):
            source = path.read_bytes().decode()
        return cls(source, begin=0 if begin is None else begin, end=0 if end is None else end)

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary as it was read. Markers other than 0 are stored in the model's
        config.json.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / WORLD_FILE, self._source)

    def encode_inside(self, text: str) -> Encoded:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[number] for number in ids).decode("utf-8", "replace")

    @cached_property
    def _tokens(self) -> dict[int, bytes]:
        return {0: END_OF_DOCUMENT.encode()} | {
            number: token for token, number in _read_vocabulary(self._source).items()
        }

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        return [self.encode(text) for text in texts]

    def cut(self, text: str, context: int, *, final: bool) -> tuple[Encoded, int, int]:
        """Encode in pieces; the context is the number of bytes of the text's first character that
        belong to an earlier token.
        """
        done: list[Encoded] = []
        start = stop = 0
        while stop < len(text):
            stop = min(stop + _PIECE_CHARS, len(text))
            last = final and stop == len(text)
            encoded, consumed, context = self._match(text[start:stop], context, last)
            done.append(encoded.shifted(start))
            start += consumed
        return Encoded.join(done), start, context

    def _match(self, text: str, used: int, final: bool) -> tuple[Encoded, int, int]:
        data = np.frombuffer(utf8(text), dtype=np.uint8)
        tokens = _Tokens(
            np.empty(len(data), np.int32),
            np.empty(len(data), np.int64),
            np.empty(len(data), np.int64),
        )
        count, stop, characters = _match(data, used, final, self._trie, tokens)
        # copied, because the arrays are as long as the bytes
        ids, starts, ends = (column[:count].copy() for column in tokens)
        done = Encoded(ids, skip_spaces(text, starts, ends), ends)
        lead = stop  # the first byte of the next character
        while lead < len(data) and data[lead] & 0xC0 == 0x80:  # a later byte of a character
            lead -= 1
        return done, characters, stop - lead

    def is_context(self, context: int, text: str) -> bool:
        return 0 <= context < max(1, len(text[:1].encode()))


def _read_vocabulary(source: str) -> dict[bytes, int]:
    advice = (
        f"expected lines of an id below {MOST_IDS:,}, a new token in quotes, and its length in"
        " bytes: download it again"
    )
    tokens: dict[bytes, int] = {}
    for number, line in enumerate(source.rstrip().split("\n"), start=1):
        token, identifier = _read_line(line)
        if (
            not token
            or not 1 <= identifier < MOST_IDS
            or tokens.setdefault(token, identifier) != identifier
        ):
            raise CheckpointError(f"{WORLD_FILE}: line {number} is {line[:60]!r}; {advice}")
    if len(set(tokens.values())) < len(tokens) or not all(
        bytes([byte]) in tokens for byte in range(256)
    ):
        raise CheckpointError(
            f"{WORLD_FILE}: an id has several tokens, or single bytes are no tokens; {advice}"
        )
    return tokens


def _read_line(line: str) -> tuple[bytes, int]:
    """Return a token and its id; b"" for a line of another form."""
    try:
        before, rest = line.split(" ", 1)
        literal, length = rest.rsplit(" ", 1)
        value = ast.literal_eval(literal)
        token = value.encode("utf-8") if isinstance(value, str) else value
        # int() drops the "\r" of a file from Windows
        sound = isinstance(token, bytes) and len(token) == int(length)
        return (token, int(before)) if sound else (b"", 0)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return b"", 0


# ---- greedy longest match ------------------------------------------------------------------------


class _Trie(NamedTuple):
    edges: np.ndarray  # (slots, 2) int32
    tokens: np.ndarray  # (nodes,) int32


class _Tokens(NamedTuple):
    ids: np.ndarray  # (B,) int32
    starts: np.ndarray  # (B,) int64, first characters
    ends: np.ndarray  # (B,) int64, the characters after the last


def _build(tokens: dict[bytes, int]) -> _Trie:
    """Build the trie of these tokens."""
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    stops = np.cumsum([len(token) for token in tokens], dtype=np.int64)
    slots = 1 << (2 * len(data)).bit_length()  # at most half full
    trie = _Trie(np.full((slots, 2), -1, np.int32), np.full(len(data) + 1, -1, np.int32))
    _insert(data, stops, np.fromiter(tokens.values(), np.int32, len(tokens)), trie)
    return trie


@njit(nogil=True, cache=True)
def _slot(edges: np.ndarray, key: int) -> int:
    """Return the slot of the key, or the free slot where it belongs: the first one from a place
    that depends on all bits of the key (multiplicative hashing).
    """
    mask = len(edges) - 1
    at = ((key * 0x9E3779B1) >> 12) & mask  # the product fits 64 bits: keys are 31 bits
    while edges[at, 0] != key and edges[at, 0] != -1:
        at = (at + 1) & mask
    return at


@njit(nogil=True, cache=True)
def _insert(data: np.ndarray, stops: np.ndarray, ids: np.ndarray, trie: _Trie) -> None:
    """Add tokens to an empty trie: token i is `data` from the end of token i - 1 to `stops[i]`."""
    count = 1  # nodes so far: the root
    start = 0
    for number in range(len(stops)):
        node = 0
        for position in range(start, stops[number]):
            key = node * 256 + data[position]
            at = _slot(trie.edges, key)
            if trie.edges[at, 0] == -1:
                trie.edges[at, 0] = key
                trie.edges[at, 1] = count
                count += 1
            node = trie.edges[at, 1]
        trie.tokens[node] = ids[number]
        start = stops[number]


@njit(nogil=True, cache=True)
def _match(
    data: np.ndarray, first: int, final: bool, trie: _Trie, tokens: _Tokens
) -> tuple[int, int, int]:
    """Cut bytes into tokens from the left, each as long as possible. Every single byte must be a
    token.

    `data` (B,) uint8 is UTF-8 from the start of a character, at whose byte `first` the tokens
    begin. Unless the text ends here (`final`), matching stops before a token that more bytes could
    lengthen. `tokens` receives the tokens and their characters. Returns (number of tokens, bytes
    used, index of the character of the next byte).
    """
    count = 0
    character = 0
    position = first
    while position < len(data):
        node = 0
        token = -1
        at = stop = position
        while at < len(data):
            slot = _slot(trie.edges, node * 256 + data[at])
            if trie.edges[slot, 0] == -1:
                break
            node = trie.edges[slot, 1]
            at += 1
            if trie.tokens[node] >= 0:
                token = trie.tokens[node]
                stop = at
        else:  # all bytes match: more bytes could lengthen the token
            if not final:
                break
        tokens.ids[count] = token
        tokens.starts[count] = character
        for byte in data[position + 1 : stop]:
            character += (byte & 0xC0) != 0x80  # not a continuation byte: a character starts here
        tokens.ends[count] = character + 1
        if stop == len(data) or (data[stop] & 0xC0) != 0x80:
            character += 1
        position = stop
        count += 1
    return count, position, character
