"""Fixtures of the training tests."""

from collections.abc import Iterator

import pytest
import torch
from sentence_transformers.base.model import BaseModel

from runnel.lab.training import progress


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums; and tiny runs only lose by sharing their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curve and checkpoints have no model card, which take longer than the steps of a
    tiny run.

    The curve is tested by test_progress.py; the card is the library's.
    """
    monkeypatch.setattr(progress, "draw", lambda rows, path: None)
    monkeypatch.setattr(BaseModel, "_create_model_card", lambda *_: None)
