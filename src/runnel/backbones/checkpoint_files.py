"""Find a checkpoint's folder and read its files: config as a dict, tensors by name, one at a time.

Nothing here knows an architecture. Safetensors are memory-mapped; pickles are only ever opened with `weights_only=True`,
which builds tensors and plain containers and runs no code from the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runnel.errors import CheckpointError

# In order of preference: a folder often carries the same weights several times.
_WEIGHT_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "consolidated.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_SMALL_FILES = ["*.json", "tokenizer*", "*.model", "*.model.v3", "vocab.txt", "merges.txt", "README.md"]
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not read yet."""

    shape: tuple[int, ...]
    file: str
    read: Callable[[], Tensor]


# ---- the folder ------------------------------------------------------------------------------------------------------


def find_folder(source: str | Path) -> Path:
    """The local folder of a model: `source` itself, or the snapshot of a hub id, downloaded if it is not cached.

    Raises:
        CheckpointError: there is no such folder, and the hub or its cache has no such model.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; give the folder it is in, so that its config.json and tokenizer are found too")
    if not isinstance(source, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source):
        raise CheckpointError(
            f"unknown model {str(source)!r}: there is no folder {path.absolute()}, and a hub id has the form owner/name; "
            "check the spelling"
        )
    return _download(source)


def _download(hub_id: str) -> Path:
    """The snapshot of `hub_id` with its small files and one set of weights; the cached one where the hub is out of reach."""
    # imported here because a local folder needs none of it
    from huggingface_hub import constants, list_repo_files, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=_SMALL_FILES))
        weights = _weight_file({path.name for path in folder.iterdir()}) or _weight_file(set(list_repo_files(hub_id)))
        if weights is not None:
            shards = sorted(set(_read_index(folder / weights).values())) if weights.endswith(".json") else [weights]
            snapshot_download(hub_id, allow_patterns=shards)
        return folder
    except (HfHubHTTPError, OSError, ValueError) as error:
        cached = try_to_load_from_cache(hub_id, "config.json")
        if isinstance(cached, str):  # fetched before, by whatever tool; `open_weights` says so if files are lacking
            return Path(cached).parent
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"unknown model {hub_id!r}: there is no folder {Path(hub_id).absolute()}, it is not in the hub cache "
            f"{constants.HF_HUB_CACHE}, and it could not be fetched from the hub ({reason}); check the spelling, "
            "download it once while online, or give a local folder"
        ) from error


def _weight_file(names: set[str]) -> str | None:
    return next((name for name in _WEIGHT_FILES if name in names), None)


def read_config(folder: Path) -> dict[str, Any] | None:
    """The model's config.json (or params.json, its older name in Mistral's folders); None when there is neither."""
    for name in ("config.json", "params.json"):
        path = folder / name
        if path.is_file():
            return _read_json(path)
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} holds an adapter (adapter_config.json), not a whole model; merge it into its base model first"
        )
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); copy or download it again") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value


# ---- the tensors -----------------------------------------------------------------------------------------------------


def open_weights(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder's checkpoint, by its name in the file.

    Raises:
        CheckpointError: no weights, a missing shard, a damaged file, or a file that holds other things than tensors.
    """
    names = {path.name for path in folder.iterdir()}
    if (name := _weight_file(names)) is not None:
        return _open_shards(folder / name) if name.endswith(".json") else _open_file(folder / name)
    loose = sorted(folder.glob("*.pth"))
    if len(loose) == 1:
        return _open_file(loose[0])
    found = some(sorted(names)) or "nothing"
    raise CheckpointError(
        f"{folder} has no weights: expected one of {', '.join(_WEIGHT_FILES)}, found {found}; is it the right folder?"
    )


def from_tensors(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Stored]:
    """The same view of tensors that are in memory already."""
    return {name: Stored(tuple(tensor.shape), origin, lambda tensor=tensor: tensor) for name, tensor in tensors.items()}  # type: ignore[misc]


def _open_file(path: Path) -> dict[str, Stored]:
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard file name, checked to stay inside the folder."""
    shards = _read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(f"{path} has no 'weight_map' from tensor names to file names; copy or download it again")
    for shard in set(shards.values()):
        if shard in ("", ".", "..") or "/" in shard or "\\" in shard:
            raise CheckpointError(f"{path} names the shard {shard!r}, which is outside its folder; runnel will not follow it")
    return shards


def _open_shards(index: Path) -> dict[str, Stored]:
    shards = _read_index(index)
    files = sorted(set(shards.values()))
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise CheckpointError(
            f"{index.parent} lacks {len(missing)} of the {len(files)} shards in its index: {some(missing)}; download them"
        )
    stored: dict[str, Stored] = {}
    for file in files:
        tensors = _open_file(index.parent / file)
        listed = {name for name, shard in shards.items() if shard == file}
        if lost := sorted(listed - tensors.keys()):
            raise CheckpointError(f"{index} says that {file} holds {some(lost)}, but it does not; they do not belong together")
        if extra := sorted(tensors.keys() - listed):
            raise CheckpointError(f"{index} does not list {some(extra)}, which {file} holds; they do not belong together")
        stored.update(tensors)
    return stored


def _open_safetensors(path: Path) -> dict[str, Stored]:
    def reader(name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:  # opened anew for each tensor: pages of converted tensors are given back at once
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)

        return read

    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    return {name: Stored(shape, path.name, reader(name)) for name, shape in shapes.items()}


def _open_pickle(path: Path) -> dict[str, Stored]:
    try:
        try:
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):  # only files from before torch 1.6 cannot be mapped
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        if _starts_with(path, _LFS_POINTER):
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path} holds pickled Python objects that are not tensors, or is damaged; runnel never runs code from a checkpoint: "
            "save the plain state dict, best as model.safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        keys = some([str(key) for key in content]) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path} is not a flat dict of tensors (it holds {keys}); save only the model's state dict")
    return {name: Stored(tuple(t.shape), path.name, lambda t=t: t) for name, t in content.items()}  # type: ignore[misc]


def _damaged(path: Path, error: Exception) -> CheckpointError:
    if _starts_with(path, _LFS_POINTER):
        return CheckpointError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository")
    size = path.stat().st_size if path.exists() else 0
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CheckpointError(f"{path} is damaged or was cut short ({size:,} bytes; {reason}); copy or download it again")


def _starts_with(path: Path, prefix: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(prefix)) == prefix
    except OSError:
        return False


def some(names: list[str], most: int = 6) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
