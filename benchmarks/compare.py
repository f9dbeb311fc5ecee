"""The commands `compare`, `train` and `read` of `python -m benchmarks`: models next to other
systems, in parts that are kept.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import reading
from benchmarks.extras import remembered, training
from benchmarks.kept import Kept, Sections, joined
from benchmarks.measure import Progress
from benchmarks.reading import Documents
from benchmarks.shapes import check_name
from benchmarks.speed import Settings, measure
from benchmarks.subject import check_device
from runnel.errors import install_command
from runnel.hardware import available_memory

_PACKAGES = {"transformers": "transformers", "bert": "transformers", "llama.cpp": "llama_cpp"}
_INSTALL = {"transformers": install_command("lab"), "llama_cpp": "pip install llama-cpp-python"}


def absent(settings: Settings) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Return the systems to compare with that are installed, and rows for those that are not, with
    the install line.
    """
    found = []
    skipped = []
    for other in settings.others:
        package = _PACKAGES[other]
        if importlib.util.find_spec(package) is not None:
            found.append(other)
            continue
        reason = f"{package} is not installed; {_INSTALL[package]}"
        skipped.append(
            {"system": other, "model": "all", "dtype": "", "kind": "missing", "reason": reason}
        )
    return tuple(found), skipped


def compare(
    settings: Settings, kept: Kept, progress: Progress, *, remember: bool = False
) -> dict[str, Any]:
    """Measure every model of `settings`, each a part that is kept; values for JSON.

    Args:
        remember: also reranking with remembered documents.

    Raises:
        InputError: a model is unknown.
        BackendUnavailable: there is no GPU.
    """
    _check(settings)
    others, skipped = absent(settings)

    def measured(model: str) -> Sections:
        part = measure(replace(settings, models=(model,), others=others), progress).to_dict()
        rows = (
            remembered(
                model, settings.dtypes[0], progress, rounds=settings.rounds, device=settings.device
            )
            if remember
            else []
        )
        return part | {"remembered": [row.to_dict() for row in rows]}

    found = joined([kept.part(model, partial(measured, model)) for model in settings.models])
    return {"machine": kept.machine} | found | {"skipped": skipped + found["skipped"]}


def train(
    settings: Settings, tokens: int, ranks: Sequence[int | None], kept: Kept, progress: Progress
) -> list[dict[str, Any]]:
    """Measure training steps of every model, and of BERT if it is among the others, with the batch
    sizes of the cells.

    Args:
        tokens: of a text.
        ranks: of adapters, each measured; None: all weights are trained.

    Raises:
        InputError: a model is unknown.
        BackendUnavailable: there is no GPU.
    """
    _check(settings)
    sizes = tuple(dict.fromkeys(batch for batch, _ in settings.cells))

    def measured(model: str, system: str, rank: int | None) -> Sections:
        limit = int(0.9 * available_memory()) if settings.device == "cpu" else None
        rows = training(
            model,
            system,
            sizes,
            tokens,
            progress,
            device=settings.device,
            memory_limit=limit,
            slow_s=settings.slow_s,
            rounds=settings.rounds,
            lora=rank,
        )
        return {"training": [row.to_dict() for row in rows]}

    runs = [(model, "runnel", rank) for model in settings.models for rank in ranks]
    runs += [
        (model, "bert", None)
        for model in settings.models
        if "bert" in settings.others and None in ranks
    ]
    return joined(
        [
            kept.part(f"{m}, {s}, {r or 'all weights'}", partial(measured, m, s, r))
            for m, s, r in runs
        ]
    )["training"]


def read(
    settings: Settings,
    documents: Documents,
    cuts: Sequence[int | None],
    kept: Kept,
    progress: Progress,
) -> dict[str, Any]:
    """Measure reading documents, cut to each of `cuts` tokens, with the batch sizes of the cells;
    see `reading.measure`.

    Raises:
        InputError: a model is unknown.
        BackendUnavailable: there is no GPU.
    """
    _check(settings)
    others, skipped = absent(settings)
    chosen = replace(settings, others=others)
    sizes = sorted({batch for batch, _ in settings.cells})
    parts = [
        kept.part(
            f"{model}, {tokens or 'whole'}",
            partial(reading.measure, chosen, model, documents, tokens, sizes, progress),
        )
        for model in settings.models
        for tokens in cuts
    ]
    found = joined(parts)
    return {"machine": kept.machine} | found | {"skipped": skipped + found["skipped"]}


def _check(settings: Settings) -> None:
    check_device(settings.device)
    for model in settings.models:
        check_name(model)
