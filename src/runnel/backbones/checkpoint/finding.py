"""Find a checkpoint and its files. It reads no tensor and imports no torch.

find_checkpoint   a model's name -> its folder or weights file on this machine; `_download`
                  fetches a hub model
read_config       the folder's config.json as a dict
weights_files     the names of the folder's weights files
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError

import yaml

from runnel.backbones.checkpoint.shapes import some
from runnel.config import read_model_json
from runnel.errors import CheckpointError
from runnel.redaction import redact, showable

# In order of preference: a folder often carries the same weights several times. After the first
# three come numbered safetensors without an index, after these numbered pickles without one, and at
# last a single .pth of any name, or an embedder's and a reranker's (EmbeddingRWKV).
_SAFETENSORS = ("model.safetensors.index.json", "model.safetensors", "consolidated.safetensors")
_PICKLES = ("pytorch_model.bin.index.json", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".pth", ".bin")  # of weights files
# params.json: the older name in Mistral's folders
_CONFIGS = ("config.json", "params.json", "config.yaml")
# what is always downloaded from the hub, besides the weights
_SMALL_FILES = [
    "*.json",
    "config.yaml",
    "tokenizer*",
    "*.model",
    "*.model.v3",
    "vocab.txt",
    "merges.txt",
    "rwkv_vocab*.txt",
    "README.md",
    "*_Dense/model.safetensors",
    "*_LayerNorm/model.safetensors",
]
_LFS_POINTER = b"version https://git-lfs"
_PART = re.compile(
    r"(?:model|pytorch_model)-(\d+)-of-(\d+)\.(?:safetensors|bin)|model_(\d+)\.safetensors"
)
_HUB_FILE = re.compile(
    r"([A-Za-z0-9][\w.-]*/[\w.-]+?)"  # owner/name
    r"(?:/([\w.-]+(?:\.safetensors|\.pth|\.bin)))?"  # and perhaps one of its files
)


def find_checkpoint(
    source: str | Path, built_in: Iterable[str] = (), *, code: bool = False
) -> Path:
    """Return the local folder or weights file of a model, downloaded if `source` is a hub id that
    is not cached.

    Args:
        source: a folder; a weights file (.safetensors, .pth, .bin), whose config and tokenizer are
            in the same folder; a hub id, owner/name; or one file of a hub model,
            owner/name/file.pth.
        built_in: the built-in names, for the message.
        code: download the Python files of a hub model too.

    Raises:
        CheckpointError: there is no such folder or file, and the hub or its cache has no such
            model.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    path = Path(name).expanduser()
    names_weights = path.suffix in _SUFFIXES
    if name and path.is_dir():
        return path
    if path.is_file():
        if names_weights and not _PART.fullmatch(path.name):
            return path
        problem = "it is no whole checkpoint; give the folder that has all its files"
    elif not name:
        problem = "it has no name"
    else:
        hub = _HUB_FILE.fullmatch(name) if isinstance(source, str) else None
        if hub and (hub[2] or not names_weights):
            return _download(hub[1], hub[2], ["*.py"] if code else [])
        problem = f"there is no {'file' if names_weights else 'folder'} {path.absolute()}"
    choices = f" (built-in models: {', '.join(built_in)})" if built_in else ""
    raise CheckpointError(
        f"unknown model {str(source) if name else source!r}: {problem}. Expected a folder, a"
        " weights file or a hub id, owner/name, or owner/name/file.pth for one of its files; check"
        f" the spelling{choices}"
    )


def _download(hub_id: str, file: str | None, more: list[str]) -> Path:
    """Return the folder of a hub model, downloaded with its small files (and `more` patterns) and
    one set of weights; or the path of its `file`. Without a connection, return what the cache has.
    """
    # imported here because a local folder needs none of it
    from huggingface_hub import (
        constants,
        list_repo_files,
        snapshot_download,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=[*_SMALL_FILES, *more]))
        names = {path.name for path in folder.iterdir()}
        if file is not None or names.isdisjoint((*_SAFETENSORS, *_PICKLES)):
            names = set(list_repo_files(hub_id))
        files = [file] if file else _pick_weights(names, hub_id)
        if file is not None and file not in names:
            weights = sorted(name for name in names if name.endswith(_SUFFIXES))
            raise CheckpointError(
                f"the hub model {hub_id} has no file {file}; it has"
                f" {some(weights, 20) or 'no weights'}"
            )
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
            # Some tool has downloaded it before. `weights_files` raises if files are missing.
            if isinstance(cached, str):
                return Path(cached) if file else Path(cached).parent
        full_name = f"{hub_id}/{file}" if file else hub_id
        raise CheckpointError(
            f"unknown model {full_name!r}: there is no folder {Path(full_name).absolute()}, it is"
            f" not in the hub cache {constants.HF_HUB_CACHE}, and it could not be fetched from the"
            f" hub ({reason_of(error)}); check the spelling, download it once while online (hf"
            f" download {hub_id}{' ' + file if file else ''}), or give a local folder"
        ) from showable(error)


def read_config(checkpoint: Path) -> dict[str, object] | None:
    """Return the config.json (or params.json, config.yaml) of a folder or of a weights file's
    folder; None if it has none.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    for name in _CONFIGS:
        if (folder / name).is_file():
            return read_model_json(
                folder / name, parse=yaml.safe_load if name.endswith(".yaml") else json.loads
            )
    if checkpoint.is_dir() and (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} holds an adapter (adapter_config.json), not a whole model; merge it into its"
            " base model first"
        )
    return None


def weights_files(folder: Path) -> list[str]:
    """Return the names of the files that hold a folder's weights, all of which exist."""
    names = {path.name for path in folder.iterdir()}
    files = _pick_weights(names, str(folder))
    if not files:
        loose = sorted(name for name in names if name.endswith(_SUFFIXES))
        hint = f"if {folder / loose[0]} is meant, name it" if loose else "is it the right folder?"
        raise CheckpointError(
            f"{folder} has no weights: expected one of {', '.join((*_SAFETENSORS, *_PICKLES))} or a"
            f" .pth, found {some(sorted(names)) or 'nothing'}; {hint}"
        )
    if files[0].endswith(".json"):
        files = _read_index(folder / files[0])
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(files)} files of its weights:"
            f" {some(missing)}"
        )
    return files


def _pick_weights(names: Iterable[str], where: str) -> list[str]:
    """Return the files that hold the weights: an index, one file, all parts, the two of
    EmbeddingRWKV, or none.
    """
    names = set(names)
    for candidates, suffix in ((_SAFETENSORS, ".safetensors"), (_PICKLES, ".bin")):
        if first := next((name for name in candidates if name in names), None):
            return [first]
        if parts := sorted(
            name for name in names if _PART.fullmatch(name) and name.endswith(suffix)
        ):
            return _all_parts(parts, where)
    loose = sorted(name for name in names if name.endswith(".pth"))
    rerankers = [name for name in loose if "reranker" in name]
    is_pair = len(loose) == 2 and len(rerankers) == 1  # an embedder and its reranker
    if len(loose) > 1 and not is_pair:
        raise CheckpointError(
            f"{where} has {len(loose)} checkpoints: {some(loose, 20)}; name the one to read, e.g."
            f" {where}/{loose[-1]}"
        )
    return loose


def _all_parts(files: list[str], where: str) -> list[str]:
    """Return the names of all parts of a checkpoint, of which `files` exist; the others may be
    missing. The names of parts are numbered from 1, but model_{n} from 0.
    """
    matches = [match for name in files if (match := _PART.fullmatch(name))]
    total = int(matches[0][2] or 0)
    last = max(int(match[1] or match[3]) for match in matches)
    before, digits, after = re.split(r"(\d+)", files[0], maxsplit=1)
    numbers = range(1, total + 1) if total else range(last + 1)
    parts = [f"{before}{number:0{len(digits)}}{after}" for number in numbers]
    if extra := sorted(set(files) - set(parts)):
        raise CheckpointError(
            f"{where} has the parts of several checkpoints, such as {some(extra)}; keep those"
            " of one"
        )
    return parts


def _read_index(path: Path) -> list[str]:
    """Return the shard files that an index names, all of them in its folder."""
    shards = read_model_json(path).get("weight_map")
    files = sorted({*map(str, shards.values())}) if isinstance(shards, dict) else []
    if outside := [
        file for file in files or [""] if file in ("", ".", "..") or "/" in file or "\\" in file
    ]:
        raise CheckpointError(
            f"{path} names no files of its folder in 'weight_map', but {outside[0]!r}; download it"
            " again"
        )
    return files


def damaged_weights(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a weights file that a library cannot open, with the likely cause."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            return CheckpointError(
                f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its"
                " repository"
            )
    if isinstance(error, UnpicklingError):
        return CheckpointError(
            f"{path} holds pickled Python objects that are not tensors, or is damaged; runnel never"
            " runs code from a checkpoint: save the plain state dict, best as model.safetensors"
        )
    size = path.stat().st_size if path.exists() else 0
    # torch maps a file with private pages: the system may refuse more of them than it has memory
    if "allocate memory" in str(error):
        return CheckpointError(
            f"{path} has {size:,} bytes, more than this machine lets a program map; use one with"
            " more memory, or several files"
        )
    return CheckpointError(
        f"{path} is damaged or was cut short ({size:,} bytes; {reason_of(error)}); copy or download"
        " it again"
    )


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, without the passwords and keys that addresses in
    the hub's messages may have.
    """
    return redact(
        next((line for line in str(error).strip().splitlines() if line), type(error).__name__)
    )
