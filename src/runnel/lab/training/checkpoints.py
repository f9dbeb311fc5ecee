"""Checkpoints of a training run: the complete ones, and the one to resume from after the run was stopped or ran out of disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("runnel")

STATE = "trainer_state.json"


def find_whole_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint, or None; newer incomplete ones are skipped with a warning."""
    return next((path for _, path in whole_checkpoints(folder)), None)


def whole_checkpoints(folder: str | Path) -> Iterator[tuple[int, Path]]:
    """Yield the steps and folders of complete checkpoints, newest first; incomplete ones are skipped with a warning.

    The Trainer writes `trainer_state.json` last, and removes older checkpoints only after that: so a checkpoint with a readable
    one is complete, and a run stopped while writing a checkpoint still has the previous one.
    """
    paths = [(int(path.name.removeprefix("checkpoint-")), path) for path in Path(folder).glob("checkpoint-*") if _number(path)]
    for step, path in sorted(paths, reverse=True):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if isinstance(state, dict) and state.get("global_step") == step:
            yield step, path
        else:
            log.warning("%s is incomplete (its %s is missing or damaged) and is skipped", path, STATE)


def _number(path: Path) -> bool:
    return path.is_dir() and path.name.removeprefix("checkpoint-").isdecimal()
