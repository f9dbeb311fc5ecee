"""Many clients at once: every answer equals the offline one."""

import asyncio

import pytest
from helpers.serving import serving

from benchmarks.serving import Load, cases, run_phase
from runnel.models.base import load_model

pytestmark = pytest.mark.slow

SMALL = Load(short_clients=10, long_clients=3, long_tokens=6_000, requests=4, vanishing=2)


def test_short_and_long_texts_together():
    model = load_model("pocket")
    short, long = cases(model, SMALL)
    with serving(model) as client:
        phase = asyncio.run(run_phase(str(client.base_url), short, long, SMALL))
        assert len(phase.short) == 40 and len(phase.long) == 3 and phase.difference > 0
        work = client.app.state.context.work
        assert (work.left, work.running, work.waiting) == (0, 0, 0)
