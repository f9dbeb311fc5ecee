"""Records refuse values of other types when they are made, not where they are used; equal sentences are one group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from runnel import Document
from runnel.errors import InputError
from runnel.records import Sentence, group_repeats, normalize


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, "text"), "the id of a document is 1; expected text (str)"),
        ((None, "text"), "the id of a document is None; expected text (str)"),
        (("a", None), "the text of document 'a' is None; expected text (str)"),
        (("a", b"bytes"), "the text of document 'a' is b'bytes'; expected text (str)"),
        (("a", "text", None), "the metadata of document 'a' is None; expected a dict"),
        (("a", "text", [("year", 1)]), "the metadata of document 'a' is [('year', 1)]; expected a dict"),
    ],
)
def test_a_document_has_an_id_and_a_text(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Document(*values)
    assert str(caught.value) == message


def test_documents_are_compared_by_value() -> None:
    assert Document("a", "", {"year": 1}) == Document("a", "", {"year": 1})
    assert Document("a", "").metadata == {}


def sentences(*texts: str) -> list[Sentence]:
    return [Sentence(text, 0, len(text), -float(i), i) for i, text in enumerate(texts)]


def grouped(*texts: str, count: int, also: Collection[str] = ()) -> list[list[int]]:
    return [[s.index for s in group] for group in group_repeats(sentences(*texts), count, also)]


def test_equal_but_for_whitespace_is_one_group() -> None:
    assert grouped("A  cat\nsat. ", "A dog.", "A cat sat.", "a cat sat.", count=9) == [[0, 2], [1], [3]]
    assert grouped("A.", "B.", "A.", "C.", "B.", count=2) == [[0, 2], [1, 4]]
    assert grouped(count=2) == []


def test_texts_that_are_known_are_grouped_wherever_they_rank() -> None:
    assert grouped("A.", "B.", "C.", "B.", count=1, also={"B."}) == [[0], [1, 3]]
    assert normalize(" a \n b ") == "a b"
