"""Fixtures of the training tests."""

from collections.abc import Iterator

import pytest
import torch
from sentence_transformers.base.model import BaseModel


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums; and tiny runs only lose by sharing their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints have no model card, which takes longer than the steps of a tiny run; it is the
    library's.
    """
    monkeypatch.setattr(BaseModel, "_create_model_card", lambda *_: None)
