"""Work with and without padding."""

import pytest
from helpers.toy import Toy

from benchmarks.padding import padding, read_lengths
from runnel.errors import InputError
from runnel.speed.shapes import describe_subject


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


@pytest.mark.parametrize(("name", "published"), [("mamba2-130m", 19.0e12), ("mamba2-1.3b", 197.9e12)])
def test_table_2_of_the_scanner_paper(name, published):
    """Both of its figures are 2 x parameters for one number of tokens; its documents have 69,119 on average by table 7.

    With the recurrence (4 for each state) 69,119 tokens come near the 130M model's, not the 1.3B model's.
    """
    backbone = describe_subject(name)
    assert backbone.standard_flops(73_640) == pytest.approx(published, abs=0.05e12)
    config = backbone.config
    recurrence = 4 * config.num_layers * config.inner_size * config.state_size
    near = backbone.standard_flops(69_119) + 69_119 * recurrence
    assert near == pytest.approx({"mamba2-130m": 19.1e12, "mamba2-1.3b": 192.7e12}[name], abs=0.05e12)


@pytest.mark.parametrize(("lengths", "batch"), [([], 1), ([0, 1], 1), ([1], 0)])
def test_bad_lengths(lengths, batch):
    with pytest.raises(InputError, match="lengths must be whole numbers from 1"):
        padding(lengths, batch, Toy())


def test_reading_lengths(tmp_path):
    file = tmp_path / "lengths"
    file.write_text("12\n\n 7 \n")
    assert read_lengths(str(file)) == (12, 7)
    file.write_text("12\nseven\n")
    with pytest.raises(InputError, match=r"line 2: expected a text's length in tokens, got 'seven'"):
        read_lengths(str(file))
    file.write_text("0\n")
    with pytest.raises(InputError, match="line 1"):
        read_lengths(str(file))
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no lengths"):
        read_lengths(str(file))
