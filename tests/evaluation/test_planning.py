"""A segment for a memory budget."""

import pytest

from runnel.engine import Engine
from runnel.errors import InputError
from runnel.evaluation.planning import ENOUGH, plan
from runnel.evaluation.shapes import describe_subject


@pytest.fixture(scope="module")
def backbone():
    return describe_subject("tiny")


def test_a_segment_fits_its_budget(backbone):
    for mib in (1, 3, 10):
        found = plan(backbone, mib << 20)
        assert 4 * found.state_bytes + found.step_bytes <= mib << 20
        assert found.segment % 64 == 0
        # One more round of tokens would not fit, unless longer is no use.
        more = (found.segment + 64) * backbone.step_bytes_per_token + 4 * found.state_bytes
        assert more > mib << 20 or found.segment == ENOUGH


def test_more_memory_is_never_a_shorter_segment(backbone):
    segments = [plan(backbone, kib << 10).segment for kib in range(200, 4000, 100)]
    assert segments == sorted(segments)
    assert plan(backbone, 1 << 40).segment == ENOUGH


def test_it_says_what_it_chose(backbone):
    assert str(plan(backbone, 1 << 40)).startswith("segments of 4,096 tokens: ")
    assert plan(backbone, 1 << 20).to_dict()["memory_bytes"] == 1 << 20


def test_too_little_for_one_segment_says_how_much_is_needed(backbone):
    with pytest.raises(InputError, match=r"memory_bytes=1,000 is too small.*give at least"):
        plan(backbone, 1000)


def test_a_small_budget_gets_what_fits(backbone):
    needed = 4 * backbone.state_bytes + 5 * backbone.step_bytes_per_token
    found = plan(backbone, needed)
    assert found.segment == 5
    assert Engine(backbone, step_tokens=found.segment).step_tokens == 5
