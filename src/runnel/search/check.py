"""Verify that the stored content of an index is complete and undamaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runnel.errors import StateError, StoreError
from runnel.records import Places
from runnel.search.matrix import odd_lengths
from runnel.search.records import WHOLE, Commit, ContentHashes, DocumentRow, PassageRow, content_hash
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
        commit, known = store.last_commit(), store.content_hashes()
        checked = _Checked(store, known)
        for rows in store.scan():
            checked.add(rows)
        return checked.finish(commit)
    except StoreError as error:
        return [Damage(None, str(error))]


class _Checked:
    """The results of the check so far."""

    def __init__(self, store: Store, known: Mapping[str, ContentHashes]) -> None:
        self._store, self._known = store, known
        self._damaged: dict[str, str] = {}
        self._numbers: dict[str, list[int]] = {}  # of the passages, by document
        self._word = ""

    def add(self, rows: Sequence[PassageRow]) -> None:
        """Check passages and, before a document's first passage, the document."""
        from runnel.models.container import unpack  # imported here: nothing else needs torch

        ids = list(dict.fromkeys(row.document for row in rows))
        documents = self._store.documents(ids, saved=True)
        fresh = [name for name in ids if name not in self._numbers]
        for name in fresh:
            self._numbers[name] = []
            if name not in documents or name not in self._known:
                self._found(name, "there are passages of it, but no text")
            elif reason := _wrong_document(documents[name], self._known[name]):
                self._found(name, reason)
        # After the texts: remembered sentences of a damaged text are also wrong.
        for start in range(0, len(fresh), _MEMORIES):
            pieces = self._store.memories(fresh[start : start + _MEMORIES])  # an error if they cannot be read
            for name, piece in pieces.items():
                try:
                    if name in documents:
                        unpack(piece, "what is remembered of it", None, documents[name].text)
                except StateError as error:
                    self._found(name, str(error))
        for row in rows:
            self._numbers[row.document].append(row.number)
            text = documents[row.document].text if row.document in documents else ""
            whole = (row.start, row.end, row.text) == (0, len(text), "")
            part = 0 <= row.start < row.end <= len(text) and text[row.start : row.end] == row.text
            if row.document in documents and not (whole if row.number == WHOLE else part):
                self._found(row.document, f"passage {row.number} is not the text at its place")
            self._word = self._word or next((word for word in row.text.split() if word.isalpha()), "")
        for i, length in odd_lengths(np.stack([row.vector for row in rows])) if rows else ():
            self._found(rows[i].document, f"the vector of {rows[i].name} has the length {length:.3g} instead of 1")

    def finish(self, commit: Commit) -> list[Damage]:
        """Return all damage, after all passages were added."""
        for name in self._known:
            numbers = sorted(self._numbers.get(name, []))
            if numbers != [WHOLE, *range(len(numbers) - 1)]:
                whole, highest = numbers.count(WHOLE), max(numbers, default=WHOLE)
                count = f"{len(numbers) - whole:,} passages up to number {highest}"
                self._found(name, f"it has {count}, and {whole} vectors of the whole document")
        whole_index = []
        counts = (len(self._known), sum(number != WHOLE for numbers in self._numbers.values() for number in numbers))
        if counts != (commit.documents, commit.passages):
            wanted = f"{commit.documents:,} documents and {commit.passages:,} passages"
            whole_index.append(f"there are {counts[0]:,} documents and {counts[1]:,} passages, its last commit has {wanted}")
        try:
            self._store.lexical(self._word, 1, [])
        except StoreError as error:
            whole_index.append(f"the index of words cannot be read: {error}")
        damaged = [Damage(name, reason) for name, reason in self._damaged.items()]
        return [*(Damage(None, reason) for reason in whole_index), *damaged]

    def _found(self, document: str, reason: str) -> None:
        self._damaged.setdefault(document, reason)


def _wrong_document(row: DocumentRow, known: ContentHashes) -> str:
    try:
        Places(row.blocks).at(0)
    except (ValueError, KeyError, TypeError):
        return "the places of its pages and headings cannot be read"
    if content_hash(row) != row.content_hash or known.content_hash != row.content_hash:
        return "its text, title, file or metadata is not what was stored (the hash differs)"
    return ""
