"""Records refuse values of other types when they are made, not where they are used."""

from __future__ import annotations

from typing import Any

import pytest

from runnel import Document
from runnel.errors import InputError


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
