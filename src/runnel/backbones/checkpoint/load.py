"""Load a backbone from any published checkpoint.

    folder or hub id --find_checkpoint--> folder --read_config, open_weights--> dict, {name: Stored}
        --recognize--> architecture, config, tensors sorted --build--> Backbone, checked and in the
        wanted dtype

The LM head is left out: it is no part of a backbone.

Every published format becomes the same pair: a config dataclass, and tensors under the names of a
backbone's module. Each architecture has its own reader, `formats.py` in its folder. Tensors are
read one at a time and assigned, not copied into an initialized model: a checkpoint in the wanted
dtype stays memory-mapped and takes its own size once. Every tensor is used exactly once or named in
an error.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from torch import Tensor
from torch.overrides import TorchFunctionMode

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.shapes import check_tensors, some
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    code_classes,
    count_layers,
    expect_agreement,
    expect_fit,
    from_tensors,
    open_file,
    read_tensor,
    reads_both_ways,
    reason_of,
    renamed,
)
from runnel.backbones.config import BackboneConfig
from runnel.backbones.families import BACKBONES, FAMILIES
from runnel.backbones.int8 import check_int8, quantize, replace_linear
from runnel.checks import expect_choice
from runnel.config import arguments, read_model_json, valid_config
from runnel.errors import CheckpointError
from runnel.ops.backend import plain_numbers, wanted_device, wanted_dtype
from runnel.redaction import showable

# In order of preference: a folder often carries the same weights several times. After the first
# three come numbered safetensors without an index, after these numbered pickles without one, and at
# last a single .pth of any name, or an embedder's and a reranker's (EmbeddingRWKV).
_SAFETENSORS = ("model.safetensors.index.json", "model.safetensors", "consolidated.safetensors")
_PICKLES = ("pytorch_model.bin.index.json", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".pth", ".bin")  # of weights files
# params.json: the older name in Mistral's folders
_CONFIGS = ("config.json", "params.json", "config.yaml")
_SMALL_FILES = [
    "*.json",
    "config.yaml",
    "tokenizer*",
    "*.model",
    "*.model.v3",
    "vocab.txt",
    "merges.txt",
    "rwkv_vocab*.txt",
]
_SMALL_FILES += ["README.md", "*_Dense/model.safetensors", "*_LayerNorm/model.safetensors"]
_PART = re.compile(
    r"(?:model|pytorch_model)-(\d+)-of-(\d+)\.(?:safetensors|bin)|model_(\d+)\.safetensors"
)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint."""

    backbone: Backbone  # in evaluation mode, prepared for its device
    # fp32: a single-pass scanner's "weight" (1, D) and "bias" (1,), or those of a runnel model
    # folder
    heads: dict[str, Tensor]
    layout: str  # in words, e.g. "Mamba-2, state-spaces original layout"
    folder: Path


def find_checkpoint(
    source: str | Path, built_in: Iterable[str] = (), *, code: bool = False
) -> Path:
    """Return the local folder or weights file of a model, downloaded if `source` is a hub id that
    is not cached.

    Args:
        source: a folder; a weights file (.safetensors, .pth, .bin), whose config and tokenizer are
            in the same folder; a hub id, owner/name; or one file of a hub model,
            owner/name/file.pth.
        built_in: names that the caller knows, for the message.
        code: download the Python files of a hub model too.

    Raises:
        CheckpointError: there is no such folder or file, and the hub or its cache has no such
            model.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    path = Path(name).expanduser()
    suffixes = "|".join(_SUFFIXES).replace(".", r"\.")
    whole = path.suffix in _SUFFIXES and not _PART.fullmatch(path.name)
    if name and (path.is_dir() or (path.is_file() and whole)):
        return path
    hub = re.fullmatch(rf"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?:/([\w.-]+(?:{suffixes})))?", name)
    if (
        isinstance(source, str)
        and hub
        and not path.is_file()
        and (hub[2] or path.suffix not in _SUFFIXES)
    ):
        return _download(hub[1], hub[2], ["*.py"] if code else [])
    problem = (
        f"there is no {'file' if path.suffix in _SUFFIXES else 'folder'} {path.absolute()}"
        if name
        else "it has no name"
    )
    if path.is_file():
        problem = "it is no whole checkpoint; give the folder that has all its files"
    known = f" (built-in models: {', '.join(built_in)})" if built_in else ""
    raise CheckpointError(
        f"unknown model {str(source) if name else source!r}: {problem}. Expected a folder, a"
        " weights file or a hub id, owner/name, or owner/name/file.pth for one of its files; check"
        f" the spelling{known}"
    )


def _download(hub_id: str, file: str | None, more: list[str]) -> Path:
    """Return the snapshot of `hub_id` with its small files and one set of weights, or one file;
    offline from the cache.
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
        if file not in (None, *names):
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
            # fetched before, by whatever tool; `open_weights` says so if files are lacking
            if isinstance(cached, str):
                return Path(cached) if file else Path(cached).parent
        whole = f"{hub_id}/{file}" if file else hub_id
        raise CheckpointError(
            f"unknown model {whole!r}: there is no folder {Path(whole).absolute()}, it is not in"
            f" the hub cache {constants.HF_HUB_CACHE}, and it could not be fetched from the hub"
            f" ({reason_of(error)}); check the spelling, download it once while online (hf download"
            f" {hub_id}{' ' + file if file else ''}), or give a local folder"
        ) from showable(error)


def _pick_weights(names: Iterable[str], where: str) -> list[str]:
    """Return the files that hold the weights: an index, one file, all parts, or none."""
    names = set(names)
    for preferred, suffix in ((_SAFETENSORS, ".safetensors"), (_PICKLES, ".bin")):
        if first := next((name for name in preferred if name in names), None):
            return [first]
        if parts := sorted(
            name for name in names if _PART.fullmatch(name) and name.endswith(suffix)
        ):
            return _all_parts(parts, where)
    loose = sorted(name for name in names if name.endswith(".pth"))
    if len(loose) > 1 and (len(loose), sum("reranker" in name for name in loose)) != (2, 1):
        raise CheckpointError(
            f"{where} has {len(loose)} checkpoints: {some(loose, 20)}; name the one to read, e.g."
            f" {where}/{loose[-1]}"
        )
    return loose


def _all_parts(files: list[str], where: str) -> list[str]:
    """Return the names of all parts of a checkpoint, some of which are missing. Numbers of
    model_{n} start at 0.
    """
    matches = [match for name in files if (match := _PART.fullmatch(name))]
    total = int(matches[0][2] or 0)
    last = max(int(match[1] or match[3]) for match in matches)
    before, digits, after = re.split(r"(\d+)", files[0], maxsplit=1)
    numbers = range(1, total + 1) if total else range(last + 1)
    wanted = [f"{before}{number:0{len(digits)}}{after}" for number in numbers]
    if extra := sorted(set(files) - set(wanted)):
        raise CheckpointError(
            f"{where} has the parts of several checkpoints, such as {some(extra)}; keep those"
            " of one"
        )
    return wanted


def read_config(checkpoint: Path) -> dict[str, Any] | None:
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


def open_weights(checkpoint: Path) -> dict[str, Stored]:
    """Return every tensor of a folder's checkpoint or of a weights file, by its name in the file.
    Reads names and shapes.
    """
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
            hint = (
                f"if {checkpoint / loose[0]} is meant, name it"
                if loose
                else "is it the right folder?"
            )
            problem = (
                f"has no weights: expected one of {', '.join((*_SAFETENSORS, *_PICKLES))} or a"
                " .pth, found "
            )
            problem += f"{some(sorted(names)) or 'nothing'}; {hint}"
        raise CheckpointError(f"{checkpoint} {problem}")
    stored: dict[str, Stored] = {}
    for file in files:
        tensors = open_file(checkpoint / file)
        if twice := sorted(tensors.keys() & stored.keys()):
            raise CheckpointError(
                f"{checkpoint}: {some(twice)} is in {file} and in {stored[twice[0]].file}; keep one"
                " of them"
            )
        stored |= tensors
    return stored


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


# Other recurrences, and hybrids with attention, whose memory grows with the text.
_OTHER_TYPES = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 nemotron_h olmo_hybrid qwen3_next"
    " recurrent_gemma rwkv"
)
KNOWN_TYPES = {
    *f"{_OTHER_TYPES} rwkv5 rwkv6 zamba zamba2".split(),
    *(kind for cls in FAMILIES for kind in cls.model_types),
}
# Copies of the authors' classes that published folders name in auto_map.
_KNOWN_CODE = re.compile(
    r"(^|[.-])(RWKV7|Rwkv7|Mamba|Mamba2|xLSTM)(Config|Model|ForCausalLM|PreTrainedModel)$"
)


def load_backbone(
    folder_or_hub_id: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Load a backbone, recognized by what the folder holds.

    Reads Mamba-1, Mamba-2 and Mamba-3 as published by state-spaces (pytorch_model.bin), the first
    two by transformers (safetensors, also sharded or without the `backbone.` prefix) and Mistral
    (Codestral, both forms), single-pass scanners, the formats of RWKV-7 and xLSTM in
    docs/models.md, and runnel's own folders.

    Args:
        folder_or_hub_id: a local folder, or a hub id (owner/name), which is downloaded once and
            cached.
        dtype: of linear layers and embedding: "auto" (bf16 where the processor computes it
            natively, else fp32), "float32", "bfloat16", "float64" or the torch dtype. All else, the
            residual stream and the state are fp32 (fp64 with fp64). "int8": linear layers in 8 bits
            and the rest as with "auto"; see `runnel.ops.int8_matmul`.
        device: "auto" (CUDA if there is one, else the CPU), or a device.

    Raises:
        CheckpointError: missing, damaged, of an unknown or refused kind, or a tensor is missing,
            unexpected or mis-shaped.
        NumericalError: a weight is NaN or infinite.
        BackendUnavailable: the device does not exist or has no 8-bit products.
    """
    return load_checkpoint(folder_or_hub_id, dtype=dtype, device=device).backbone


@plain_numbers()
def load_checkpoint(
    folder_or_hub_id: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Checkpoint:
    """Load a backbone and the heads stored with it; see `load_backbone` for
    arguments and errors.
    """
    target = wanted_device(device)
    wanted = wanted_dtype(dtype, target)  # before any reading: these are cheap to get wrong
    folder = find_checkpoint(folder_or_hub_id)
    recognized = recognize(read_config(folder), open_weights(folder), str(folder))
    heads = {
        name: read_tensor(name, stored, str(folder), torch.float32, target)
        for name, stored in recognized.heads.items()
    }
    backbone = build(
        recognized.architecture, recognized.config, recognized.backbone, wanted, target, str(folder)
    )
    return Checkpoint(
        backbone, heads, recognized.layout, folder if folder.is_dir() else folder.parent
    )


@plain_numbers()
def build_backbone(
    architecture: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Build a backbone from tensors in memory, checked as a file's are; those in the wanted dtype
    are used as they are.
    """
    target = wanted_device(device)
    where = "the given model"
    return build(
        architecture,
        parse_config(architecture, config, where),
        from_tensors(tensors, "memory"),
        wanted_dtype(dtype, target),
        target,
        where,
    )


def recognize(
    config: Mapping[str, Any] | None, tensors: Mapping[str, Stored], where: str
) -> Recognized:
    """Decide what a checkpoint is, by its config or, without one, by names and shapes. Reads no
    weights.
    """
    config = config or {}
    if "runnel" in config:
        recognized = _from_runnel(config["runnel"], tensors, where)
    else:
        _refuse_foreign(config, where)
        recognized = _from_published(config, tensors, where)
        declared = next(
            (cls for cls in FAMILIES if config.get("model_type") in cls.model_types),
            BACKBONES[recognized.architecture],
        )
        if "dim" not in config:  # these files say "mamba" whatever they hold
            expect_agreement(
                {"the model": declared.title},
                {"the model": BACKBONES[recognized.architecture].title},
                where,
            )
    # Before hundreds of tensors are missing: a config that contradicts them.
    expect_agreement(
        {"num_layers": recognized.config.num_layers},
        {"num_layers": count_layers(recognized.backbone)},
        where,
    )
    largest = max(
        (size for stored in recognized.backbone.values() for size in stored.shape), default=0
    )
    for name, value in recognized.config.to_dict().items():
        fits = name == "num_layers" or type(value) is not int or value <= largest
        expect_fit(
            fits,
            f"tensors, of at most {largest:,} rows or columns, for {name} {value!r} of its config",
            where,
        )
    return recognized._replace(
        layout=f"{BACKBONES[recognized.architecture].title}, {recognized.layout} layout"
    )


def _from_published(
    config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str
) -> Recognized:
    for family in FAMILIES:
        # imported here because runnel's own folders need none of them
        formats = import_module(f"{family.__module__.rpartition('.')[0]}.formats")
        if formats.recognizes(config, tensors.keys()):
            with valid_config(where):
                recognized: Recognized = formats.read(config, tensors, where)
                return recognized
    titles = ", ".join(family.title for family in FAMILIES)
    names = some(sorted(tensors)) or "none"
    raise CheckpointError(
        f"{where} is of an unknown kind: its tensors ({names}) are those of none of {titles}"
    )


def _refuse_foreign(config: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for a config that says of another model what would be taken for one of
    these.
    """
    kind = str(config.get("model_type", ""))
    problem = None
    if config.get("quantization_config"):
        problem = "it has quantized weights (quantization_config); load the unquantized checkpoint"
    elif (
        kind and "dim" not in config and not any(kind in family.model_types for family in FAMILIES)
    ):
        families = ", ".join(family.title for family in FAMILIES)
        problem = (
            f"it is a {kind!r} model, expected {families}; sentence-transformers reads others, as"
            " embedders or rerankers"
        )
    elif (said := reads_both_ways(config)) is not None:
        problem = (
            f"{said}, so its authors read a text both ways, which runnel does not do with recurrent"
            " models"
        )
    elif strange := [name for name in code_classes(config) if not _KNOWN_CODE.search(name)]:
        problem = (
            f"auto_map names code, {strange[0]}, which is never run; if the model is a plain one of"
            " its kind, remove it"
        )
    if problem:
        raise CheckpointError(f"{where}/config.json: {problem}")


@dataclass(frozen=True)
class _Declared:
    """What the config.json of a runnel folder says of its backbone."""

    architecture: str
    config: dict[str, Any]


def _from_runnel(description: Any, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Recognize a folder that runnel wrote: tensors `backbone.*` and `heads.*`, and the backbone's
    config from `to_dict`.
    """
    backbone = description.get("backbone") if isinstance(description, Mapping) else None
    declared = _Declared(**arguments(_Declared, backbone, f"{where}/config.json: the backbone"))
    config = parse_config(declared.architecture, declared.config, where)
    scales = {
        name
        for name in tensors
        if name.endswith(".scale") and name.removesuffix(".scale") in tensors
    }
    whole = {name: _with_scale(name, tensors, where) for name in tensors if name not in scales}
    heads = {
        name.removeprefix("heads."): whole.pop(name)
        for name in list(whole)
        if name.startswith("heads.")
    }
    stored = renamed(whole, lambda name: name.removeprefix("backbone."), where, unused="")
    return Recognized(declared.architecture, "runnel", config, stored, heads)


def _with_scale(name: str, tensors: Mapping[str, Stored], where: str) -> Stored:
    """Return the tensor `name`, multiplied by its per-row scale if it is stored in 8 bits."""
    matrix = tensors[name]
    scale = tensors.get(name + ".scale")
    if scale is None:
        return matrix
    fits = len(matrix.shape) == 2 and scale.shape == matrix.shape[:1]
    expect_fit(
        fits,
        f"tensor '{name}.scale' is {scale.shape}, expected {matrix.shape[:1]}, one per row",
        where,
    )

    def whole() -> Tensor:  # of its own, so that the product needs no further memory
        return matrix.read().to(torch.float32, copy=True).mul_(scale.read()[:, None])

    return Stored(matrix.shape, matrix.file, whole, rows=(matrix, scale))


def parse_config(architecture: str, values: Mapping[str, Any], where: str) -> BackboneConfig:
    """Return the config of `architecture` from its `to_dict` form."""
    with valid_config(where):
        expect_choice(architecture, BACKBONES, "the architecture")
        return BACKBONES[architecture].config_class.from_dict(dict(values), f"{where}: its config")


def meta_backbone(architecture: str, config: BackboneConfig) -> Backbone:
    """Return a backbone on the meta device: names and shapes, no memory and no numbers."""
    with torch.device("meta"), NoRandomNumbers():
        backbone = BACKBONES[architecture]
        return backbone(config)  # type: ignore[call-arg]  # each class takes its own config


def build(
    architecture: str,
    config: BackboneConfig,
    stored: Mapping[str, Stored],
    dtype: torch.dtype,
    device: torch.device,
    where: str,
) -> Backbone:
    """Return a backbone of these tensors, each used once or named in an error."""
    backbone = meta_backbone(architecture, config)
    expected = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}
    check_tensors(stored, expected, where)
    small = torch.float64 if dtype == torch.float64 else torch.float32
    whole = dtype
    in_8_bits = tuple[str, ...]()
    if dtype == torch.int8:
        check_int8(backbone.title, backbone.int8_layers, device, where)
        whole = wanted_dtype("auto", device)
        in_8_bits = tuple(f"{end}.weight" for end in backbone.int8_layers)
        with torch.device("meta"), NoRandomNumbers():
            replace_linear(backbone, backbone.int8_layers)
    tensors = {}
    for name in expected:
        if name.endswith(in_8_bits):
            # read also for its checks
            weight = read_tensor(name, stored[name], where)
            rows = stored[name].rows
            # the file's own 8 bits have no loss
            q, scale = quantize(weight) if rows is None else (part.read() for part in rows)
            tensors[name] = q.contiguous()
            tensors[name + "_scale"] = scale.float().contiguous()
        else:
            target = whole if name.endswith(backbone.matrices) else small
            tensors[name] = read_tensor(name, stored[name], where, target, device)
    backbone.load_state_dict(tensors, strict=True, assign=True)
    backbone.eval()
    return backbone


class NoRandomNumbers(TorchFunctionMode):
    """Skip random initialization: on the meta device it has no effect but imports torch's compiler,
    which takes seconds.

    `trunc_normal_`, which draws again until all numbers are within its limits and which no mode
    sees, is replaced meanwhile.
    """

    _RANDOM = frozenset(
        {
            Tensor.normal_,
            Tensor.uniform_,
            torch.nn.init.kaiming_uniform_,
            torch.nn.init.uniform_,
            torch.nn.init.normal_,
        }
    )

    def __enter__(self) -> Self:
        self._truncated = torch.nn.init._no_grad_trunc_normal_

        def unchanged(tensor: Tensor, *limits: float, **options: object) -> Tensor:
            return tensor

        setattr(torch.nn.init, "_no_grad_trunc_normal_", unchanged)  # noqa: B010  # mypy
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(torch.nn.init, "_no_grad_trunc_normal_", self._truncated)  # noqa: B010

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in self._RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
