"""Find a checkpoint and read its files: config as a dict, tensors by name, one at a time.

A checkpoint is a folder, one weights file, or a hub id. Nothing here knows an architecture.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.tensors import Stored, open_file, reason_of, some
from runnel.errors import CheckpointError
from runnel.json_objects import read_model_json

# In order of preference: a folder often carries the same weights several times. After the first three come numbered
# safetensors without an index, after these numbered pickles without one, and at last a single .pth of any name, or an embedder's
# and a reranker's (EmbeddingRWKV).
_SAFETENSORS = ("model.safetensors.index.json", "model.safetensors", "consolidated.safetensors")
_PICKLES = ("pytorch_model.bin.index.json", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".pth", ".bin")  # of weights files
_CONFIGS = ("config.json", "params.json", "config.yaml")  # params.json: the older name in Mistral's folders
_SMALL_FILES = ["*.json", "config.yaml", "tokenizer*", "*.model", "*.model.v3", "vocab.txt", "merges.txt", "rwkv_vocab*.txt"]
_SMALL_FILES += ["README.md", "*_Dense/model.safetensors", "*_LayerNorm/model.safetensors"]
_PART = re.compile(r"(?:model|pytorch_model)-(\d+)-of-(\d+)\.(?:safetensors|bin)|model_(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint."""

    backbone: Backbone  # in evaluation mode, prepared for its device
    heads: dict[str, Tensor]  # fp32: a single-pass scanner's "weight" (1, D) and "bias" (1,), or those of a runnel model folder
    layout: str  # in words, e.g. "Mamba-2, state-spaces original layout"
    folder: Path


# ---- where it is -----------------------------------------------------------------------------------------------------


def find_checkpoint(source: str | Path, built_in: Iterable[str] = (), *, code: bool = False) -> Path:
    """Return the local folder or weights file of a model, downloaded if `source` is a hub id that is not cached.

    Args:
        source: a folder; a weights file (.safetensors, .pth, .bin), whose config and tokenizer are in the same folder;
            a hub id, owner/name; or one file of a hub model, owner/name/file.pth.
        built_in: names that the caller knows, for the message.
        code: download the Python files of a hub model too.

    Raises:
        CheckpointError: there is no such folder or file, and the hub or its cache has no such model.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    path, suffixes = Path(name).expanduser(), "|".join(_SUFFIXES).replace(".", r"\.")
    whole = path.suffix in _SUFFIXES and not _PART.fullmatch(path.name)
    if name and (path.is_dir() or (path.is_file() and whole)):
        return path
    hub = re.fullmatch(rf"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?:/([\w.-]+(?:{suffixes})))?", name)
    if isinstance(source, str) and hub and not path.is_file() and (hub[2] or path.suffix not in _SUFFIXES):
        return _download(hub[1], hub[2], ["*.py"] if code else [])
    problem = f"there is no {'file' if path.suffix in _SUFFIXES else 'folder'} {path.absolute()}" if name else "it has no name"
    if path.is_file():
        problem = "it is no whole checkpoint; give the folder that has all its files"
    known = f" (built-in models: {', '.join(built_in)})" if built_in else ""
    raise CheckpointError(
        f"unknown model {str(source) if name else source!r}: {problem}. Expected a folder, a weights file or a hub id, "
        f"owner/name, or owner/name/file.pth for one of its files; check the spelling{known}"
    )


def _download(hub_id: str, file: str | None, more: list[str]) -> Path:
    """Return the snapshot of `hub_id` with its small files and one set of weights, or one file; offline from the cache."""
    # imported here because a local folder needs none of it
    from huggingface_hub import constants, list_repo_files, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=[*_SMALL_FILES, *more]))
        names = {path.name for path in folder.iterdir()}
        if file is not None or names.isdisjoint((*_SAFETENSORS, *_PICKLES)):
            names = set(list_repo_files(hub_id))
        files = [file] if file else _pick_weights(names, hub_id)
        if file not in (None, *names):
            weights = sorted(name for name in names if name.endswith(_SUFFIXES))
            raise CheckpointError(f"the hub model {hub_id} has no file {file}; it has {some(weights, 20) or 'no weights'}")
        if files and files[0].endswith(".json"):
            files = _read_index(folder / files[0])
        if files:
            snapshot_download(hub_id, allow_patterns=files)
        return folder / file if file else folder
    except CheckpointError:
        raise
    except (HfHubHTTPError, OSError, ValueError) as error:
        for name in [file] if file else [*_CONFIGS, "README.md"]:
            cached = try_to_load_from_cache(hub_id, name)
            if isinstance(cached, str):  # fetched before, by whatever tool; `open_weights` says so if files are lacking
                return Path(cached) if file else Path(cached).parent
        whole = f"{hub_id}/{file}" if file else hub_id
        raise CheckpointError(
            f"unknown model {whole!r}: there is no folder {Path(whole).absolute()}, it is not in the hub cache "
            f"{constants.HF_HUB_CACHE}, and it could not be fetched from the hub ({reason_of(error)}); check the spelling, "
            f"download it once while online (hf download {hub_id}{' ' + file if file else ''}), or give a local folder"
        ) from error


def _pick_weights(names: Iterable[str], where: str) -> list[str]:
    """Return the files that hold the weights: an index, one file, all parts, or none."""
    names = set(names)
    for known, suffix in ((_SAFETENSORS, ".safetensors"), (_PICKLES, ".bin")):
        if found := next((name for name in known if name in names), None):
            return [found]
        if parts := sorted(name for name in names if _PART.fullmatch(name) and name.endswith(suffix)):
            return _all_parts(parts, where)
    loose = sorted(name for name in names if name.endswith(".pth"))
    if len(loose) > 1 and (len(loose), sum("reranker" in name for name in loose)) != (2, 1):
        raise CheckpointError(
            f"{where} has {len(loose)} checkpoints: {some(loose, 20)}; name the one to read, e.g. {where}/{loose[-1]}"
        )
    return loose


def _all_parts(parts: list[str], where: str) -> list[str]:
    """Return the names of all parts of a checkpoint, some of which are missing. Numbers of model_{n} start at 0."""
    matches = [match for name in parts if (match := _PART.fullmatch(name))]
    total, last = int(matches[0][2] or 0), max(int(match[1] or match[3]) for match in matches)
    before, digits, after = re.split(r"(\d+)", parts[0], maxsplit=1)
    numbers = range(1, total + 1) if total else range(last + 1)
    wanted = [f"{before}{number:0{len(digits)}}{after}" for number in numbers]
    if extra := sorted(set(parts) - set(wanted)):
        raise CheckpointError(f"{where} has the parts of several checkpoints, such as {some(extra)}; keep those of one")
    return wanted


# ---- the config ------------------------------------------------------------------------------------------------------


def read_config(checkpoint: Path) -> dict[str, Any] | None:
    """Return the config.json (or params.json, config.yaml) of a folder or of a weights file's folder; None if it has none."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    for name in _CONFIGS:
        if (folder / name).is_file():
            return read_model_json(folder / name, parse=yaml.safe_load if name.endswith(".yaml") else json.loads)
    if checkpoint.is_dir() and (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} holds an adapter (adapter_config.json), not a whole model; merge it into its base model first"
        )
    return None


# ---- the tensors -----------------------------------------------------------------------------------------------------


def open_weights(checkpoint: Path) -> dict[str, Stored]:
    """Return every tensor of a folder's checkpoint or of a weights file, by its name in the file. Reads names and shapes."""
    if not checkpoint.is_dir():
        return open_file(checkpoint)
    names = {path.name for path in checkpoint.iterdir()}
    files = _pick_weights(names, str(checkpoint))
    if files and files[0].endswith(".json"):
        files = _read_index(checkpoint / files[0])
    missing = [file for file in files if not (checkpoint / file).is_file()]
    if not files or missing:
        problem = f"lacks {len(missing)} of the {len(files)} files of its weights: {some(missing)}"
        if not files:
            loose = sorted(name for name in names if name.endswith(_SUFFIXES))
            hint = f"if {checkpoint / loose[0]} is meant, name it" if loose else "is it the right folder?"
            problem = f"has no weights: expected one of {', '.join((*_SAFETENSORS, *_PICKLES))} or a .pth, found "
            problem += f"{some(sorted(names)) or 'nothing'}; {hint}"
        raise CheckpointError(f"{checkpoint} {problem}")
    stored: dict[str, Stored] = {}
    for file in files:
        tensors = open_file(checkpoint / file)
        if twice := sorted(tensors.keys() & stored.keys()):
            raise CheckpointError(f"{checkpoint}: {some(twice)} is in {file} and in {stored[twice[0]].file}; keep one of them")
        stored |= tensors
    return stored


def _read_index(path: Path) -> list[str]:
    """Return the shard files that an index names, all of them in its folder."""
    shards = read_model_json(path).get("weight_map")
    files = sorted({*map(str, shards.values())}) if isinstance(shards, dict) else []
    if outside := [file for file in files or [""] if file in ("", ".", "..") or "/" in file or "\\" in file]:
        raise CheckpointError(f"{path} names no files of its folder in 'weight_map', but {outside[0]!r}; download it again")
    return files
