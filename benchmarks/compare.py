"""Compare models with other systems, and measure training, remembered documents and padding: `python -m benchmarks compare`."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

from benchmarks.extras import remembered, training
from benchmarks.padding import padding
from benchmarks.speed import Settings, measure
from runnel.hardware import available_memory
from runnel.speed.machine import machine
from runnel.speed.measure import Progress
from runnel.speed.shapes import describe_subject
from runnel.speed.subject import check_device, check_subject

TRAINING_TOKENS = 512
_PACKAGES = {"transformers": "transformers", "bert": "transformers", "llama.cpp": "llama_cpp"}
_INSTALL = {"transformers": 'pip install "runnel[baselines]"', "llama_cpp": "pip install llama-cpp-python"}


def absent(settings: Settings) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Return the systems to compare with that are installed, and rows for those that are not, with the install line."""
    found, skipped = [], []
    for other in settings.others:
        package = _PACKAGES[other]
        if importlib.util.find_spec(package) is not None:
            found.append(other)
            continue
        reason = f"{package} is not installed; {_INSTALL[package]}"
        skipped.append({"system": other, "model": "all", "dtype": "", "kind": "missing", "reason": reason})
    return tuple(found), skipped


def compare(
    settings: Settings,
    progress: Progress,
    *,
    train: bool = False,
    remember: bool = False,
    lengths: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Measure every model of `settings`; values for JSON.

    Args:
        train: also training, `TRAINING_TOKENS` tokens a text, with the batch sizes of the cells.
        remember: also reranking with remembered documents.
        lengths: of texts in tokens, for the work that padding adds.

    Raises:
        InputError, BackendUnavailable: see `check_subject` and `check_device`.
    """
    check_device(settings.device)
    for model in settings.models:
        check_subject(model, settings.dtypes, settings.device, settings.segment, None)
    others, skipped = absent(settings)
    report = measure(replace(settings, others=others), progress)
    report.skipped[:0] = skipped
    batches = tuple(dict.fromkeys(batch for batch, _ in settings.cells))
    return {
        "machine": machine(),
        **report.to_dict(),
        "training": [row for model in settings.models for row in _training(settings, model, batches, others, progress)]
        if train
        else [],
        "remembered": [
            row.to_dict()
            for model in (settings.models if remember else ())
            for row in remembered(model, settings.dtypes[0], progress, rounds=settings.rounds, device=settings.device)
        ],
        "padding": [
            {"model": model} | padding(lengths, batch, describe_subject(model))
            for model in settings.models
            for batch in (batches if lengths else ())
        ],
    }


def _training(
    settings: Settings, model: str, batches: tuple[int, ...], others: tuple[str, ...], progress: Progress
) -> list[dict[str, Any]]:
    limit = int(0.9 * available_memory()) if settings.device == "cpu" else None
    more = {"device": settings.device, "memory_limit": limit, "slow_s": settings.slow_s}
    return [
        point.to_dict()
        for system in ("runnel", *(["bert"] if "bert" in others else []))
        for point in training(model, system, batches, TRAINING_TOKENS, progress, **more)  # type: ignore[arg-type]
    ]
