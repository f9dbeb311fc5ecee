"""Fixtures for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest_plugins = ["command_line"]


with torch.device("meta"):  # torch looks up once which functions take a device: before the ones below are replaced
    torch.empty(0)


def _fill(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return tensor.fill_(True) if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).min)


@pytest.fixture(autouse=True)
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runnel asks for without a value holds NaN, so an output element that nobody writes shows up.

    Only torch's functions: numba recognises `numpy.empty` by identity, so that one cannot be replaced under it.
    """

    def filled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = function(*arguments, **options)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return _fill(tensor) if caller.partition(".")[0] == "runnel" else tensor

        return allocate

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
