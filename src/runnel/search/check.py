"""Verify that the stored content of an index is complete and undamaged.

In: a store. Out: all damage; of each document the first that is found.

A document has passages with the numbers 0, 1, 2, ... and a row with the number `WHOLE` (-1), which
holds the vector of the whole document and no text.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from runnel.errors import StateError, StoreError
from runnel.models.memory import unpack
from runnel.records import Places
from runnel.search.damage import Damage, odd_lengths
from runnel.search.records import WHOLE, ContentHashes, DocumentRow, PassageRow, content_hash
from runnel.search.stores import Store

# What is stored of a document so that it need not be read again (`models/memory.py`): this many are
# read at a time, because they are large.
_MEMORIES = 50
_Reasons = Iterator[tuple[str, str]]  # ids of documents, and what is damaged


def check_store(store: Store) -> list[Damage]:
    """Read everything that an index stores; return all damage, one entry per document."""
    try:
        store.refresh()
        return _check(store)
    except StoreError as error:
        return [Damage(None, str(error))]


def _check(store: Store) -> list[Damage]:
    commit = store.last_commit()
    hashes = store.content_hashes()
    reasons: dict[str, str] = {}  # the first for each document
    numbers: dict[str, list[int]] = {}  # by document, the numbers of its passages
    # a word of a passage, "" if there is none: the index of words must be able to look it up
    word = ""
    # 1. Each document, with its passages.
    for passages in store.scan():
        names = list(dict.fromkeys(row.document for row in passages))
        documents = store.documents(names, saved=True)
        # the passages of a document may come in several parts
        new = [name for name in names if name not in numbers]
        for row in passages:
            numbers.setdefault(row.document, []).append(row.number)
            word = word or next(filter(str.isalpha, row.text.split()), "")
        # texts first: the passages and memories of a damaged text are also wrong
        for name, reason in chain(
            _damaged_documents(new, documents, hashes),
            _damaged_memories(new, documents, store),
            _damaged_passages(passages, documents),
            _damaged_vectors(passages),
        ):
            reasons.setdefault(name, reason)
    # 2. Passages that are missing. A text without a token has none.
    alone = [name for name in hashes if name not in numbers]
    documents = store.documents(alone, saved=True)
    for name, reason in _damaged_documents(alone, documents, hashes):
        reasons.setdefault(name, reason)
    # documents without a token, such as an empty text
    blank = {name for name, row in documents.items() if row.tokens == 0}
    for name in hashes.keys() - blank:
        if reason := _missing_passages(sorted(numbers.get(name, []))):
            reasons.setdefault(name, reason)
    # 3. The whole index: the counts of its last commit, and its index of words.
    damage = []
    passage_count = sum(number != WHOLE for stored in numbers.values() for number in stored)
    if (len(hashes), passage_count) != (commit.documents, commit.passages):
        damage.append(
            f"there are {len(hashes):,} documents and {passage_count:,} passages, its last commit"
            f" has {commit.documents:,} documents and {commit.passages:,} passages"
        )
    try:
        store.lexical(word, 1, [])
    except StoreError as error:
        damage.append(f"the index of words cannot be read: {error}")
    return [Damage(None, reason) for reason in damage] + [
        Damage(name, reason) for name, reason in reasons.items()
    ]


def _damaged_documents(
    names: Sequence[str],
    documents: Mapping[str, DocumentRow],
    hashes: Mapping[str, ContentHashes],
) -> _Reasons:
    for name in names:
        if name not in documents or name not in hashes:
            yield name, "there are passages of it, but no text"
            continue
        row = documents[name]
        try:
            Places(row.blocks).at(0)
        except (ValueError, KeyError, TypeError):
            yield name, "the places of its pages and headings cannot be read"
        if not content_hash(row) == row.content_hash == hashes[name].content_hash:
            yield (
                name,
                "its text, title, file or metadata is not what was stored (the hash differs)",
            )


def _damaged_memories(
    names: Sequence[str], documents: Mapping[str, DocumentRow], store: Store
) -> _Reasons:
    for start in range(0, len(names), _MEMORIES):
        memories = store.memories(names[start : start + _MEMORIES])  # StoreError ends the check
        for name, memory in memories.items():
            try:
                if name in documents:  # None: vectors of any model
                    unpack(memory, "what is remembered of it", None, documents[name].text)
            except StateError as error:
                yield name, str(error)


def _damaged_passages(
    passages: Sequence[PassageRow], documents: Mapping[str, DocumentRow]
) -> _Reasons:
    """Yield the documents that have another text at the place of a passage."""
    for row in passages:
        if row.document not in documents:
            continue
        text = documents[row.document].text
        if row.number == WHOLE:
            right = (row.start, row.end, row.text) == (0, len(text), "")
        else:
            inside = 0 <= row.start < row.end <= len(text)
            right = inside and text[row.start : row.end] == row.text
        if not right:
            yield row.document, f"passage {row.number} is not the text at its place"


def _damaged_vectors(passages: Sequence[PassageRow]) -> _Reasons:
    if passages:
        for i, length in odd_lengths(np.stack([row.vector for row in passages])):
            yield (
                passages[i].document,
                f"the vector of {passages[i].name} has the length {length:.3g} instead of 1",
            )


def _missing_passages(numbers: Sequence[int]) -> str:
    """Return which passages of a document are missing or stored twice, by their sorted numbers;
    "": none. Right is [-1, 0, 1, 2], of a document with three passages.
    """
    if numbers == [WHOLE, *range(len(numbers) - 1)]:
        return ""
    wholes = numbers.count(WHOLE)
    highest = max(numbers, default=WHOLE)
    return (
        f"it has {len(numbers) - wholes:,} passages up to number {highest}, and {wholes} vectors of"
        " the whole document"
    )
