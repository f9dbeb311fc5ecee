"""Verify that the stored content of an index is complete and undamaged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runnel.errors import StateError, StoreError
from runnel.models.memory import unpack
from runnel.records import Places
from runnel.search.lance import odd_lengths
from runnel.search.records import (
    WHOLE,
    Commit,
    ContentHashes,
    DocumentRow,
    PassageRow,
    content_hash,
)
from runnel.search.stores import Store

_MEMORIES = 50  # read at a time, because they are large


@dataclass(frozen=True, slots=True)
class Damage:
    """A problem of a document, or of the whole index (`document` is then None)."""

    document: str | None
    reason: str


def check(store: Store) -> list[Damage]:
    """Read everything that an index stores; return all damage, one entry per document."""
    try:
        store.refresh()
        return _check(store, store.last_commit(), store.content_hashes())
    except StoreError as error:
        return [Damage(None, str(error))]


def _check(store: Store, commit: Commit, known: Mapping[str, ContentHashes]) -> list[Damage]:
    damaged: dict[str, str] = {}  # the first reason for each document
    numbers: dict[str, list[int]] = {}  # of the passages, by document
    word = ""
    for rows in store.scan():
        ids = list(dict.fromkeys(row.document for row in rows))
        documents = store.documents(ids, saved=True)
        fresh = [name for name in ids if name not in numbers]
        numbers |= {name: [] for name in fresh}
        for name in fresh:
            if name not in documents or name not in known:
                damaged.setdefault(name, "there are passages of it, but no text")
            elif reason := _wrong_document(documents[name], known[name]):
                damaged.setdefault(name, reason)
        # after the texts: those of a damaged text are also wrong
        for name, reason in _wrong_memories(store, documents, fresh):
            damaged.setdefault(name, reason)
        for row in rows:
            numbers[row.document].append(row.number)
            if row.document in documents and not _is_of(row, documents[row.document].text):
                damaged.setdefault(
                    row.document, f"passage {row.number} is not the text at its place"
                )
            word = word or next((word for word in row.text.split() if word.isalpha()), "")
        for i, length in odd_lengths(np.stack([row.vector for row in rows])) if rows else ():
            reason = f"the vector of {rows[i].name} has the length {length:.3g} instead of 1"
            damaged.setdefault(rows[i].document, reason)
    for name in known:
        its_numbers = sorted(numbers.get(name, []))
        if its_numbers != [WHOLE, *range(len(its_numbers) - 1)]:
            whole, highest = its_numbers.count(WHOLE), max(its_numbers, default=WHOLE)
            count = f"{len(its_numbers) - whole:,} passages up to number {highest}"
            damaged.setdefault(name, f"it has {count}, and {whole} vectors of the whole document")
    whole_index = []
    counts = (
        len(known),
        sum(number != WHOLE for its_numbers in numbers.values() for number in its_numbers),
    )
    if counts != (commit.documents, commit.passages):
        wanted = f"{commit.documents:,} documents and {commit.passages:,} passages"
        whole_index.append(
            f"there are {counts[0]:,} documents and {counts[1]:,} passages, its last commit has"
            f" {wanted}"
        )
    try:
        store.lexical(word, 1, [])
    except StoreError as error:
        whole_index.append(f"the index of words cannot be read: {error}")
    return [
        *(Damage(None, reason) for reason in whole_index),
        *(Damage(name, reason) for name, reason in damaged.items()),
    ]


def _wrong_memories(
    store: Store, documents: Mapping[str, DocumentRow], ids: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield those of `ids` whose memory is damaged, with the reason."""
    for start in range(0, len(ids), _MEMORIES):
        pieces = store.memories(ids[start : start + _MEMORIES])  # an error if they cannot be read
        for name, piece in pieces.items():
            try:
                if name in documents:
                    unpack(piece, "what is remembered of it", None, documents[name].text)
            except StateError as error:
                yield name, str(error)


def _is_of(row: PassageRow, text: str) -> bool:
    """Return whether a passage is the part of its document's text that it says it is."""
    if row.number == WHOLE:
        return (row.start, row.end, row.text) == (0, len(text), "")
    return 0 <= row.start < row.end <= len(text) and text[row.start : row.end] == row.text


def _wrong_document(row: DocumentRow, known: ContentHashes) -> str:
    try:
        Places(row.blocks).at(0)
    except (ValueError, KeyError, TypeError):
        return "the places of its pages and headings cannot be read"
    if content_hash(row) != row.content_hash or known.content_hash != row.content_hash:
        return "its text, title, file or metadata is not what was stored (the hash differs)"
    return ""
