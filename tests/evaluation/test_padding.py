"""Work with and without padding."""

import pytest

from runnel.errors import InputError
from runnel.evaluation.padding import padding, read_lengths


def test_counts():
    found = padding([1, 9, 2, 8, 3], batch=2, flops_per_token=10)
    assert (found.texts, found.tokens) == (5, 23)
    assert found.padded == 2 * 9 + 2 * 8 + 3
    assert found.padded_sorted == 2 * 2 + 2 * 8 + 9
    assert found.to_dict()["padded_flops"] == 370
    assert found.to_dict()["packed_flops"] == 230
    assert found.to_dict()["padded_sorted_flops"] == 290


def test_one_text_at_a_time_needs_no_padding():
    found = padding([1, 9, 2], batch=1, flops_per_token=1)
    assert found.tokens == found.padded == found.padded_sorted == 12


@pytest.mark.parametrize(("lengths", "batch"), [([], 1), ([0, 1], 1), ([1], 0)])
def test_bad_lengths(lengths, batch):
    with pytest.raises(InputError, match="lengths must be whole numbers from 1"):
        padding(lengths, batch, 1)


def test_reading_lengths(tmp_path):
    file = tmp_path / "lengths"
    file.write_text("12\n\n 7 \n")
    assert read_lengths(str(file)) == [12, 7]
    file.write_text("12\nseven\n")
    with pytest.raises(InputError, match=r"line 2: expected a text's length in tokens, got 'seven'"):
        read_lengths(str(file))
    file.write_text("0\n")
    with pytest.raises(InputError, match="line 1"):
        read_lengths(str(file))
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no lengths"):
        read_lengths(str(file))
