"""Convert a SentencePiece model (tokenizer.model) to a tokenizer.json of the tokenizers library, with the same ids.

Models that are not BPE, or whose normalizer changes more than spaces, are refused: an approximation would give wrong ids.

The file is one protobuf message, of which a few fields are read; numbers and names are those of `sentencepiece_model.proto`
in google/sentencepiece. There, the priority of a merge is the score of the resulting piece, whatever its two halves are; here
every pair of halves that are pieces is a separate merge, in the order of the scores.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import CheckpointError, errors_as

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}
_SPACE = "\u2581"  # how a space is written in pieces
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class Piece(NamedTuple):
    """One entry of the vocabulary; its id is its position."""

    text: str
    score: float
    kind: int


def convert(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the content of the tokenizer.json, and the names of the begin and end markers as in tokenizer_config.json."""
    damage = (IndexError, KeyError, TypeError, ValueError, struct.error)
    with errors_as(CheckpointError, f"{path} is not a SentencePiece model, or is damaged", *damage, advice="download it again"):
        pieces, trainer, normalizer = _parse(path.read_bytes())
    reason = _unsupported(pieces, trainer, normalizer)
    if reason:
        raise CheckpointError(f"{path} {reason}; put this model's tokenizer.json into the same folder")
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    if normalizer.get(3, 1):
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
    special = [(number, piece.text) for number, piece in enumerate(pieces) if piece.kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in special],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "model": {
            "type": "BPE",
            "vocab": {piece.text: number for number, piece in enumerate(pieces)},
            "merges": _merges(pieces),
            "unk_token": next(piece.text for piece in pieces if piece.kind == _UNKNOWN),
            "fuse_unk": True,
            "byte_fallback": bool(trainer.get(35)),
        },
    }
    markers = {"bos_token": trainer.get(41, 1), "eos_token": trainer.get(42, 2)}
    names = {key: pieces[number].text for key, number in markers.items() if 0 <= number < len(pieces)}
    return json.dumps(spec, ensure_ascii=False), names


def _merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Return every pair of pieces that makes a piece, best first."""
    normal = {piece.text for piece in pieces if piece.kind == _NORMAL}
    merges = []
    for piece in sorted((piece for piece in pieces if piece.kind == _NORMAL), key=lambda piece: -piece.score):
        halves = ((piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text)))
        merges += [(left, right) for left, right in halves if left in normal and right in normal]
    return merges


def _unsupported(pieces: list[Piece], trainer: dict[int, Any], normalizer: dict[int, Any]) -> str:
    """Return why the model cannot be converted exactly; empty if it can."""
    if not pieces:
        return "has no pieces: it is damaged, or no SentencePiece model"
    kind = trainer.get(3, 1)
    if kind != 2:
        return f"is a {_MODEL_TYPES.get(kind, 'unknown')} model and only BPE models are converted"
    if normalizer.get(2):
        return f"rewrites characters before it splits (normalizer {str(normalizer.get(1, b''), 'utf-8', 'replace')!r})"
    if normalizer.get(4, 1) or not normalizer.get(5, 1) or trainer.get(24):
        return "drops spaces, keeps them unchanged, or puts them after words"
    normal = {piece.text for piece in pieces if piece.kind == _NORMAL}
    characters = {character for text in normal for character in text}
    if not characters <= normal:
        return f"has pieces with characters that are not pieces themselves, such as {min(characters - normal)!r}"
    if any(piece.kind == _UNUSED for piece in pieces):
        return "has disabled pieces"
    marks = [piece.text for piece in pieces if piece.kind == _USER_DEFINED]
    if other := [text for text in marks if not re.fullmatch(r"\[\w+\]|<[^<>\s]+>", text)]:
        return f"splits texts at special words, such as {other[0]!r}"
    return "" if any(piece.kind == _UNKNOWN for piece in pieces) else "has no unknown token"


def _parse(data: bytes) -> tuple[list[Piece], dict[int, Any], dict[int, Any]]:
    """Return (pieces, trainer settings, normalizer settings), the settings by protobuf field number."""
    pieces: list[Piece] = []
    settings: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    for number, value in _fields(data):
        if number == 1:
            fields = dict(_fields(value))
            score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
            pieces.append(Piece(str(fields[1], "utf-8"), score, fields.get(3, _NORMAL)))
        elif number in settings:
            settings[number] = dict(_fields(value))
    return pieces, settings[2], settings[3]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protobuf message; values are integers for varints, else bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = _varint(data, at) if kind == _LENGTH else ({_FIXED64: 8, _FIXED32: 4}[kind], at)
        if at + length > len(data):
            raise ValueError(f"{length} bytes at byte {at}, past the end")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (number, offset of the next). A negative number n is returned as 2^64 + n."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
