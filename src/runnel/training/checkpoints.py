"""Checkpoints of a training run: which one to go on from after the run was stopped, killed, or ran out of disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger("runnel")

_STATE = "trainer_state.json"


def find_whole_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None; those that were not are skipped with a warning.

    The Trainer writes `trainer_state.json` last, and removes older checkpoints only after that: so a checkpoint with a readable
    one is whole, and whatever stops a run while it writes a checkpoint leaves the one before. A restarted run writes over a
    broken one when it gets to the same step.

    Args:
        folder: the run's `output_dir`. It need not exist.
    """
    found = [(int(path.name.removeprefix("checkpoint-")), path) for path in Path(folder).glob("checkpoint-*") if _number(path)]
    for step, path in sorted(found, reverse=True):
        try:
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if isinstance(state, dict) and state.get("global_step") == step:
            return path
        log.warning("%s was not written to its end (its %s is missing or damaged); it is left out", path, _STATE)
    return None


def _number(path: Path) -> bool:
    return path.is_dir() and path.name.removeprefix("checkpoint-").isdecimal()
