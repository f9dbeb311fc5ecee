"""Fixtures for all tests."""

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.children import PROGRAMS

pytest_plugins = [
    "helpers.browser",
    "helpers.command_line",
    "helpers.judged_tasks",
    "helpers.stub_endpoint",
]

# read when haystack is imported, here and in processes of tests
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have only slow tests where these are deselected: importing their
    libraries takes a quarter minute.
    """
    if collection_path.suffix != ".py" or "not slow" not in config.option.markexpr:
        return None
    return (
        bool(
            re.search(
                r"^pytestmark = \[?pytest\.mark\.slow\b",
                collection_path.read_text(encoding="utf-8"),
                re.M,
            )
        )
        or None
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order whole files: those of slow tests first, then by their number of tests. `make test`
    hands them out in this order.
    """
    counts = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -counts[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported out of garbage collections: a full one of it takes 0.5 s, and each
    training run asks for one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# torch looks up once which functions take a device: before the ones below are replaced
with torch.device("meta"):
    torch.empty(0)


@pytest.fixture(scope="session", autouse=True)
def ceiling(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let tests use no `.runnel` above their folders, and no files that the user's commands
    remember.
    """
    os.environ["RUNNEL_CEILING_DIRECTORIES"] = str(tmp_path_factory.getbasetemp())
    os.environ["RUNNEL_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio alone."""
    return "asyncio"


@pytest.fixture
def set_threads() -> Generator[Callable[[int], None]]:
    """The function that sets torch's number of threads, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def full_disk() -> Generator[Callable[..., None]]:
    """A function that lets no file of this process grow beyond so many bytes, until the end of the
    test.
    """
    import resource  # not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(size: int = 20_000) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def parser_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that parses does what the file says: see `worker_that_fails`."""
    command = (sys.executable, "-P", str(PROGRAMS / "worker_that_fails.py"))
    monkeypatch.setattr("runnel.text.documents.reader._COMMAND", command)


def _fill(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return (
        tensor.fill_(True)
        if tensor.dtype == torch.bool
        else tensor.fill_(torch.iinfo(tensor.dtype).min)
    )


@pytest.fixture(autouse=True)
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runnel asks for without a value holds NaN, so an output element that nobody
    writes shows up.

    Only torch's functions: numba recognizes `numpy.empty` by identity, so that one cannot be
    replaced under it.
    """

    def filled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = function(*arguments, **options)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return _fill(tensor) if caller.partition(".")[0] == "runnel" else tensor

        return allocate

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
