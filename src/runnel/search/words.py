"""Split texts into words for BM25."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.errors import MissingDependency


def words_of(texts: Sequence[str]) -> list[list[str]]:
    """Return the words of each text in lower case, without single letters and English stop words.

    Raises:
        MissingDependency: bm25s is not installed.
    """
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependency("this index needs bm25s; install it with: pip install bm25s") from error
    found: list[list[str]] = bm25s.tokenize(list(texts), return_ids=False, show_progress=False)
    return found
