"""A whole bench, as `runnel bench` asks for it: settings checked, everything measured, one dictionary for JSON."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint import check_int8
from runnel.errors import InputError
from runnel.evaluation.extras import remembered, training
from runnel.evaluation.machine import machine
from runnel.evaluation.padding import padding
from runnel.evaluation.shapes import DTYPES, check_name, describe_subject
from runnel.evaluation.speed import OTHERS, Progress, Settings, measure, roofline_dtype
from runnel.evaluation.systems import check_device
from runnel.hardware import available_memory
from runnel.planning import fit

TRAINING_TOKENS = 512
_PACKAGES = {"transformers": "transformers", "bert": "transformers", "llama.cpp": "llama_cpp"}
_INSTALL = {"transformers": 'pip install "runnel[baselines]"', "llama_cpp": "pip install llama-cpp-python"}


@dataclass(frozen=True)
class Bench:
    """What to measure.

    Args:
        training: batch sizes to train with, `TRAINING_TOKENS` tokens a text.
        remembered: also rerank with remembered documents.
        length_list: lengths of texts in tokens, for the work that padding adds.
        memory_limit: bytes that a training process may take; default: what is free.
    """

    settings: Settings
    training: tuple[int, ...] = ()
    remembered: bool = False
    length_list: tuple[int, ...] = ()
    memory_limit: int | None = None


def validate(settings: Settings) -> None:
    """Raise for what can be known to be wrong before anything runs.

    Raises:
        InputError: an unknown model, dtype or system, a number below 1, a model without 8-bit kernels, or too little memory for
            the weights and one segment.
        BackendUnavailable: a GPU that is not there, or 8 bits on a processor that cannot multiply them.
    """
    check_device(settings.device)
    for kind, numbers in (("lengths", settings.lengths), ("batches", settings.batches)):
        if not numbers or min(numbers) < 1:
            raise InputError(f"{kind} must be whole numbers from 1, got {', '.join(map(str, numbers)) or 'none'}")
    for kind, given, known in (("dtype", settings.dtypes, tuple(DTYPES)), ("system to compare with", settings.others, OTHERS)):
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise InputError(f"no {kind} {name!r}; there are {', '.join(known)}" + (f" (near: {near[0]})" if near else ""))
    for model in settings.models:
        check_name(model)
    for model in settings.models:
        backbone = describe_subject(model)
        if "int8" in settings.dtypes:
            check_int8(backbone, torch.device(settings.device), model)
        _check_memory(model, backbone, settings)


def _check_memory(model: str, backbone: Backbone, settings: Settings) -> None:
    """Whether the weights, a segment and its states fit: what is known from shapes alone."""
    free = available_memory() if settings.device == "cpu" else torch.cuda.mem_get_info()[0]
    size = max(DTYPES[roofline_dtype(name)].itemsize for name in settings.dtypes)  # with 8 bits the embedding has 16
    weights = size * sum(parameter.numel() for parameter in backbone.parameters())
    if weights >= free:
        raise InputError(
            f"{model} needs {weights / 2**30:.1f} GiB for its weights, {free / 2**30:.1f} GiB are free; use a smaller one"
        )
    if settings.budget is not None:
        fit(backbone, settings.budget)
    elif settings.segment is not None:
        room, needed = free - weights, 4 * backbone.state_bytes + settings.segment * backbone.step_bytes_per_token
        if needed > room:
            fits = fit(backbone, room).segment
            raise InputError(
                f"one segment of {settings.segment:,} tokens of {model} needs {needed / 2**20:,.0f} MiB, {room / 2**20:,.0f} MiB "
                f"are free beside its weights; use segments of {fits:,} tokens or fewer"
            )


def absent(settings: Settings) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The systems to compare with that are installed, and those that are not, with what to do."""
    found, skipped = [], []
    for other in settings.others:
        package = _PACKAGES[other]
        if importlib.util.find_spec(package) is not None:
            found.append(other)
            continue
        reason = f"{package} is not installed; {_INSTALL[package]}"
        skipped.append({"system": other, "model": "all", "dtype": "", "kind": "missing", "reason": reason})
    return tuple(found), skipped


def run(bench: Bench, progress: Progress) -> dict[str, Any]:
    """Measure; the result's "wrong" says whether any check failed."""
    settings = bench.settings
    validate(settings)
    others, skipped = absent(settings)
    report = measure(replace(settings, others=others), progress)
    report.skipped[:0] = skipped
    result: dict[str, Any] = {"format": 1, "machine": machine(), **report.to_dict()}
    result["training"] = [point for model in settings.models for point in _training(bench, model, others, progress)]
    result["remembered"] = [row for model in settings.models for row in _remembered(bench, model, progress)]
    result["padding"] = [
        {"model": model} | padding(bench.length_list, batch, describe_subject(model)).to_dict()
        for model in settings.models
        for batch in settings.batches
        if bench.length_list
    ]
    rows = [*result["training"], *result["remembered"]]
    result["wrong"] = report.wrong or any(row["outcome"] in ("wrong", "error") for row in (*rows, *result["points"]))
    return result


def _training(bench: Bench, model: str, others: tuple[str, ...], progress: Progress) -> list[dict[str, Any]]:
    systems = ["runnel", *(["bert"] if "bert" in others else [])] if bench.training else []
    limit = bench.memory_limit or int(0.9 * available_memory())
    settings = bench.settings
    return [
        point.to_dict()
        for system in systems
        for point in training(
            model,
            system,
            bench.training,
            TRAINING_TOKENS,
            progress,
            device=settings.device,
            memory_limit=limit if settings.device == "cpu" else None,
            slow_s=settings.slow_s,
        )
    ]


def _remembered(bench: Bench, model: str, progress: Progress) -> list[dict[str, Any]]:
    if not bench.remembered:
        return []
    settings = bench.settings
    rows = remembered(model, settings.dtypes[0], progress, rounds=settings.rounds, device=settings.device)
    if isinstance(rows, str):
        outcome, _, note = rows.partition(": ")
        return [{"model": model, "way": "", "outcome": outcome, "note": note, "ms_per_document": None, "over_whole": None}]
    return [row.to_dict() for row in rows]
