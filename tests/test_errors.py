"""Words of messages."""

import pytest

from runnel.errors import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "document", "0 documents"), (1, "document", "1 document"), (1, "query", "1 query"), (2000, "query", "2,000 queries")],
)
def test_a_count_with_its_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
