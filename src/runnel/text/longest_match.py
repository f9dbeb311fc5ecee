"""Greedy longest match of bytes against a fixed list of tokens: numba kernels over a trie in flat arrays.

The trie is a hash table from (node, byte) to node with open addressing: a row of `edges` is the key node * 256 + byte (-1: free)
and the node it leads to. `tokens` holds the id of the token that ends at a node (-1: none). Node 0 is the root.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True}


class Trie(NamedTuple):
    """A trie in flat arrays; see the module docstring."""

    edges: np.ndarray  # (slots, 2) int32
    tokens: np.ndarray  # (nodes,) int32


def build(tokens: dict[bytes, int]) -> Trie:
    """Build the trie of these tokens."""
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    stops = np.cumsum([len(token) for token in tokens], dtype=np.int64)
    slots = 1 << (2 * len(data)).bit_length()  # at most half full
    trie = Trie(np.full((slots, 2), -1, np.int32), np.full(len(data) + 1, -1, np.int32))
    _insert(data, stops, np.fromiter(tokens.values(), np.int32, len(tokens)), trie)
    return trie


@njit(**_OPTIONS)
def _slot(edges: np.ndarray, key: int) -> int:
    """Return the slot of the key, or the free slot where it belongs."""
    mask = len(edges) - 1
    at = ((key * 0x9E3779B1) >> 12) & mask  # the product fits 64 bits: keys are 31 bits
    while edges[at, 0] != key and edges[at, 0] != -1:
        at = (at + 1) & mask
    return at


@njit(**_OPTIONS)
def _insert(data: np.ndarray, stops: np.ndarray, ids: np.ndarray, trie: Trie) -> None:
    count, start = 1, 0
    for number in range(len(stops)):
        node = 0
        for position in range(start, stops[number]):
            key = node * 256 + data[position]
            at = _slot(trie.edges, key)
            if trie.edges[at, 0] == -1:
                trie.edges[at, 0], trie.edges[at, 1] = key, count
                count += 1
            node = trie.edges[at, 1]
        trie.tokens[node] = ids[number]
        start = stops[number]


@njit(**_OPTIONS)
def match(
    data: np.ndarray, first: int, final: bool, trie: Trie, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[int, int, int]:
    """Cut bytes into tokens from the left, each as long as possible. Every single byte must be a token.

    `data` (B,) uint8 is UTF-8 from the start of a character, at whose byte `first` the tokens begin. Unless the text ends here
    (`final`), matching stops before a token that more bytes could lengthen. `ids`, `starts` and `ends` (B,) receive the tokens
    and their characters. Returns (number of tokens, bytes used, index of the character of the next byte).
    """
    count, position, character = 0, first, 0
    while position < len(data):
        node, at, token, stop = 0, position, -1, position
        while at < len(data):
            slot = _slot(trie.edges, node * 256 + data[at])
            if trie.edges[slot, 0] == -1:
                break
            node = trie.edges[slot, 1]
            at += 1
            if trie.tokens[node] >= 0:
                token, stop = trie.tokens[node], at
        else:
            if not final:
                break
        ids[count], starts[count] = token, character
        for byte in data[position + 1 : stop]:
            character += (byte & 0xC0) != 0x80  # not a continuation byte: a character starts here
        ends[count] = character + 1
        if stop == len(data) or (data[stop] & 0xC0) != 0x80:
            character += 1
        position = stop
        count += 1
    return count, position, character
