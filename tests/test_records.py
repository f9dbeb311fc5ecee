"""Records refuse values of other types when they are made, not where they are used; equal sentences
are one group.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from runnel import Document
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError
from runnel.records import Place, Sentence, group_repeats, percent, probability, wording


def test_a_document_has_an_id_and_a_text() -> None:
    values: Any
    for values, named in (
        ((1, "text"), "id .* 1"),
        (("a", b"bytes"), "text of document 'a' is b'bytes'"),
        (("a", "text", [("year", 1)]), r"metadata of document 'a' is \[\('year', 1\)\]"),
    ):
        with pytest.raises(InputError, match=named):
            Document(*values)


def test_where_a_place_is() -> None:
    def where(kind: str, page: int | None = None, id: str | None = None) -> str:
        return Place(
            "a", id, 3, page, ("Part 2: Leave", "Sick leave"), 5, 9, "text", kind, "0" * 64
        ).where

    assert where("docx") == "characters 5-9, Part 2 Leave › Sick leave"
    assert (where("md"), where("pdf", 4), where("csv", None, "a7")) == ("3", "page 4", "row a7")


def test_equal_but_for_whitespace_is_one_group_and_known_texts_are_grouped_wherever_they_rank() -> (
    None
):
    def grouped(*texts: str, count: int, also: Collection[str] = ()) -> list[list[int]]:
        sentences = [Sentence(text, 0, len(text), -float(i), i) for i, text in enumerate(texts)]
        return [[s.index for s in group] for group in group_repeats(sentences, count, also)]

    assert grouped("A  cat\nsat. ", "A dog.", "A cat sat.", "a cat sat.", count=9) == [
        [0, 2],
        [1],
        [3],
    ]
    assert grouped("A.", "B.", "A.", "C.", "B.", count=2) == [[0, 2], [1, 4]]
    assert grouped(count=2) == []
    assert grouped("A.", "B.", "C.", "B.", count=1, also={"B."}) == [[0], [1, 3]]


@pytest.mark.parametrize(
    ("score", "shown"),
    [(-1e4, "under 1 %"), (-6, "under 1 %"), (0, "50 %"), (1.14, "76 %"), (6, "over 99 %")],
)
def test_a_probability_is_never_shown_as_certain(score: float, shown: str) -> None:
    assert percent(probability(score)) == shown


def test_a_damaged_file_of_a_model_is_named_and_one_may_be_missing_or_hold_a_list(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_model_json(path)
    assert read_model_json(path, default={}) == {}
    for content in (b"\xff", b"[" * 100_000, b"[]"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_model_json(path)
    assert read_model_json(path, expect=list) == []
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="dict; expected a list"):
        read_model_json(path, expect=list)


def test_signs_within_words_and_comparisons_are_part_of_the_wording():
    assert wording("Use *max_retry* or `a`.") == wording("Use max_retry or a.")
    for one, other in (("2*3", "23"), ("a > b", "a < b"), ("a_b", "ab"), ("C++", "C")):
        assert wording(one) != wording(other)
