"""What must hold of every document, whatever its kind."""

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.parts import Archive
from runnel.text.sentences import split_sentences

KINDS = "heading paragraph item row heads line code note contents".split()


def check(document: DocumentText) -> DocumentText:
    """Blocks are ordered, disjoint and trimmed; between them there is white space alone; pages
    ascend; the rest is consistent.
    """
    text, blocks = document.text, document.blocks
    assert "\r" not in text
    assert document.sha256 == hashlib.sha256(text.encode()).hexdigest()
    for block in blocks:
        assert 0 <= block.start < block.end <= len(text)
        assert text[block.start : block.end] == text[block.start : block.end].strip()
        assert block.kind in KINDS
        assert all(title == " ".join(title.split()) for title in block.headings)
    edges = [0, *(edge for block in blocks for edge in (block.start, block.end)), len(text)]
    for before, after in list(pairwise(edges))[::2]:
        assert before <= after and not text[before:after].strip(), text[before:after]
    edges = [edge for span in document.unread for edge in span]
    assert edges == sorted(set(edges)) and all(0 <= edge <= len(text) for edge in edges)
    pages = [block.page for block in blocks if block.page is not None]
    assert pages == sorted(pages) and all(
        page in range(1, (document.pages or 0) + 1) for page in pages
    )
    spans = split_sentences(text)
    assert "".join(text[a:b] for a, b in spans.tolist()) == text
    for block in blocks:
        assert document.block_at(block.start) == document.block_at(block.end - 1) == block
    assert DocumentText.from_wire(document.to_wire()) == document
    return document


def read_zip(
    read: Callable[[Archive, Limits], DocumentText], path: Path, limits: Limits | None = None
) -> DocumentText:
    limits = limits or Limits()
    with Archive(path, limits) as archive:
        return check(read(archive, limits))


def shown(document: DocumentText) -> list[tuple[str, str]]:
    """(kind, text) of each block."""
    return [(block.kind, document.text[block.start : block.end]) for block in document.blocks]


def paths(document: DocumentText) -> dict[str, tuple[str, ...]]:
    """{text of a block: its heading path}."""
    return {document.text[block.start : block.end]: block.headings for block in document.blocks}


def leads(document: DocumentText) -> dict[str, tuple[str, ...]]:
    """{text of a block: its lead}, of the blocks that have one."""
    return {
        document.text[block.start : block.end]: block.lead
        for block in document.blocks
        if block.lead
    }
