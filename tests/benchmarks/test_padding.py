"""Work with and without padding."""

import pytest
from helpers.toy import Toy

from benchmarks.padding import padding
from runnel.errors import InputError


def test_counts():
    """The toy takes 16 operations a token and has 400 parameters."""
    found = padding([1, 9, 2, 8, 3], batch=2, backbone=Toy())
    assert (found["texts"], found["tokens"]) == (5, 23)
    assert found["padded"] == 2 * 9 + 2 * 8 + 3
    assert found["padded_sorted"] == 2 * 2 + 2 * 8 + 9
    assert (found["packed_flops"], found["padded_flops"], found["padded_sorted_flops"]) == (16 * 23, 16 * 37, 16 * 29)
    assert (found["standard_packed_flops"], found["standard_padded_flops"]) == (816 * 23, 816 * 37)
    assert found["standard_padded_sorted_flops"] == 816 * 29


def test_attention_goes_with_the_square_of_a_text():
    class Attentive(Toy):
        def flops(self, tokens: int) -> int:
            return 16 * tokens + 100 * tokens**2

    found = padding([1, 3], batch=2, backbone=Attentive())
    assert found["packed_flops"] == 16 * 4 + 100 * (1 + 9)
    assert found["padded_flops"] == 16 * 6 + 100 * (9 + 9)
    assert found["standard_padded_flops"] == 816 * 6 + 100 * (9 + 9)


def test_one_text_at_a_time_needs_no_padding():
    found = padding([1, 9, 2], batch=1, backbone=Toy())
    assert found["tokens"] == found["padded"] == found["padded_sorted"] == 12


@pytest.mark.parametrize(("lengths", "batch"), [([], 1), ([0, 1], 1), ([1], 0)])
def test_bad_lengths(lengths, batch):
    with pytest.raises(InputError, match="lengths must be whole numbers from 1"):
        padding(lengths, batch, Toy())
