"""Fixtures of the training tests."""

from collections.abc import Callable

import pytest
from sentence_transformers.base.model import BaseModel


@pytest.fixture
def one_thread(set_threads: Callable[[int], None]) -> None:
    """Sums in another order are other sums; and tiny runs only lose by sharing their work."""
    set_threads(1)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints have no model card, which takes longer than the steps of a tiny run; it is the
    library's.
    """
    monkeypatch.setattr(BaseModel, "_create_model_card", lambda *_: None)
