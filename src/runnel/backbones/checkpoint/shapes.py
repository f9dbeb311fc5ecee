"""The check that a file has the tensors that a model needs, by their names and shapes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runnel.errors import CheckpointError


@dataclass(frozen=True)
class StoredShape:
    """The shape of a tensor in a file: all that the check needs of it."""

    shape: tuple[int, ...]
    file: str


def some(names: list[str], most: int = 6) -> str:
    """Return the first few names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# What torch adds to the names of a model that it wraps to train on several devices, or to compile.
_WRAPPED = re.compile(r"(?:^|\.)(module\.|_orig_mod\.)")


def refuse_wrapped(names: Iterable[str], where: str) -> None:
    """Raise CheckpointError if the names of tensors are those of a model that torch had wrapped."""
    if wrapped := next(filter(None, map(_WRAPPED.search, sorted(names))), None):
        raise CheckpointError(
            f"{where}: the name of the tensor {wrapped.string!r} has the prefix {wrapped[1]!r} of a"
            " wrapped model, by DistributedDataParallel or torch.compile; save the model inside, or"
            " remove the prefix from all names"
        )


def check_tensors(
    stored: Mapping[str, StoredShape], expected: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Raise CheckpointError unless every tensor is given exactly once; one error lists all
    problems.
    """
    problems = []
    missing = [name for name in expected if name not in stored]
    extra = sorted(stored.keys() - expected.keys())
    for what, names in (("missing", missing), ("unexpected", extra)):
        if names:
            place = f" in {stored[names[0]].file}" if names is extra else ""
            problems.append(
                f"{what} tensor{'s' if len(names) > 1 else ''}"
                f" {some([repr(name) for name in names])}{place}"
            )
    for name, shape in expected.items():
        if name in stored and stored[name].shape != shape:
            problems.append(
                f"mis-shaped tensor {name!r} is {stored[name].shape} in {stored[name].file},"
                f" expected {shape}"
            )
    if problems:
        raise CheckpointError(
            f"{where}: {some(problems, 3)}. The weights are incomplete, or belong to another config"
            " or model"
        )
