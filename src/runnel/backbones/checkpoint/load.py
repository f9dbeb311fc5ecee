"""Load a backbone from any published checkpoint.

    find_checkpoint, read_config    the folder's path and its config.json (`finding.py`)
    open_weights                    the tensors of its files by name, not read yet
    recognize                       the architecture, its config, the tensors under its own names
    build                           read, check and convert each tensor -> a Backbone

The LM head is left out: it is no part of a backbone.

Every published format becomes the same pair: a config dataclass, and tensors under the names of a
backbone's module. Each architecture has its own reader, `formats.py` in its folder. Tensors are
read one at a time and assigned, not copied into an initialized model: a checkpoint in the wanted
dtype stays memory-mapped and takes its own size once. Every tensor is used exactly once or named in
an error.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.config_values import (
    code_classes,
    expect_agreement,
    reads_both_ways,
)
from runnel.backbones.checkpoint.finding import find_checkpoint, read_config, weights_files
from runnel.backbones.checkpoint.shapes import check_tensors, refuse_wrapped, some
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    count_layers,
    expect_fit,
    from_tensors,
    open_file,
    read_tensor,
    renamed,
    shapes_of,
)
from runnel.backbones.config import BackboneConfig
from runnel.backbones.families import BACKBONES, FAMILIES
from runnel.backbones.int8 import check_int8, quantize, replace_linear
from runnel.checks import expect_choice
from runnel.config import arguments, valid_config
from runnel.errors import CheckpointError
from runnel.ops.backend import plain_numbers, wanted_device, wanted_dtype

log = logging.getLogger("runnel")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint."""

    backbone: Backbone  # in evaluation mode, prepared for its device
    # fp32, by name: "weight" (1, hidden_size) and "bias" (1,) of a single-pass scanner (a Mamba
    # that scores sentences, paper E), or the heads of a runnel model folder
    heads: dict[str, Tensor]
    layout: str  # in words, e.g. "Mamba-2, state-spaces original layout"
    folder: Path
    config: dict[str, object]  # the folder's own; {} without one


def open_weights(checkpoint: Path) -> dict[str, Stored]:
    """Return every tensor of a folder's checkpoint or of a weights file, by its name in the file,
    and the tensors that it shares with another model (`_shared_weights`). Reads names and shapes.
    """
    if not checkpoint.is_dir():
        return open_file(checkpoint)
    stored: dict[str, Stored] = {}
    for file in weights_files(checkpoint):
        tensors = open_file(checkpoint / file)
        if twice := sorted(tensors.keys() & stored.keys()):
            raise CheckpointError(
                f"{checkpoint}: {some(twice)} is in {file} and in {stored[twice[0]].file}; keep one"
                " of them"
            )
        stored |= tensors
    return stored | _shared_weights(checkpoint)


@dataclass(frozen=True)
class _Sharing:
    """The key "shared" of a runnel folder's config: of other models, by the names of their folders
    beside this one, the tensors that this model has too.
    """

    shared: dict[str, tuple[str, ...]]


def _shared_weights(folder: Path) -> dict[str, Stored]:
    """Return the tensors that a folder which runnel wrote shares with other models, instead of a
    copy of its own; with the scales of those in 8 bits.
    """
    description = (read_config(folder) or {}).get("runnel")
    if not isinstance(description, Mapping) or "shared" not in description:
        return {}
    where = f"{folder}/config.json: the object runnel"
    sharing = _Sharing(**arguments(_Sharing, {"shared": description["shared"]}, where))
    tensors: dict[str, Stored] = {}
    for other, names in sharing.shared.items():
        if Path(other).name != other:
            raise CheckpointError(
                f"{where} shares weights with {other!r}; expected the name of a folder beside"
                f" {folder}"
            )
        held = open_weights(folder.parent / other)
        if missing := [name for name in names if name not in held]:
            raise CheckpointError(
                f"{folder.parent / other} lacks {some(missing)}, which {folder} shares"
            )
        wanted = {*names, *(f"{name}.scale" for name in names)}
        tensors |= {
            name: replace(tensor, file=f"../{other}/{tensor.file}")
            for name, tensor in held.items()
            if name in wanted
        }
    return tensors


_TITLES = ", ".join(family.title for family in FAMILIES)
# Types that runnel knows but does not read: other recurrences, and hybrids with attention, whose
# memory grows with the text.
_OTHER_TYPES = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 nemotron_h olmo_hybrid qwen3_next"
    " recurrent_gemma rwkv"
)
KNOWN_TYPES = {
    *f"{_OTHER_TYPES} rwkv5 rwkv6 zamba zamba2".split(),
    *(kind for cls in FAMILIES for kind in cls.model_types),
}
# Model types for which code that a config names is not refused: if the tensors fit the plain model,
# they are read as that, with a warning.
_RECURRENT_TYPES = {
    kind for cls in FAMILIES if cls.architecture != "encoder" for kind in cls.model_types
}
# Names of copies of the authors' classes. A folder may name them in auto_map and still be plain.
# Code is never run. Code of other names is refused (`_refuse_foreign`), or with a type of
# `_RECURRENT_TYPES` only warned of (`load_checkpoint`); a folder of runnel's may name any.
_KNOWN_CODE = re.compile(
    r"(^|[.-])(RWKV7|Rwkv7|Mamba|Mamba2|xLSTM)(Config|Model|ForCausalLM|PreTrainedModel)$"
)


def load_backbone(
    folder_or_hub_id: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Load a backbone, recognized by what the folder holds.

    Reads Mamba-1 and Mamba-2 as published by state-spaces (pytorch_model.bin), the first
    two by transformers (safetensors, also sharded or without the `backbone.` prefix) and Mistral
    (Codestral, both forms), single-pass scanners, the formats of RWKV-7 and xLSTM in
    docs/models.md, and runnel's own folders.

    Args:
        folder_or_hub_id: a local folder, or a hub id (owner/name), which is downloaded once and
            cached.
        dtype: of linear layers and embedding: "auto" (bf16 where the processor computes it
            natively, else fp32), "float32", "bfloat16", "float64" or the torch dtype. All other
            weights, the residual stream and the state are fp32 (fp64 with fp64). "int8": linear
            layers in 8 bits and the rest as with "auto"; see `runnel.ops.int8_matmul`.
        device: "auto" (CUDA if there is one, else the CPU), or a device.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of an unknown or refused kind; a
            tensor is missing, unexpected or mis-shaped.
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
    config = read_config(folder) or {}
    recognized = recognize(config, open_weights(folder), str(folder))
    heads = {
        name: read_tensor(name, stored, str(folder), torch.float32, target)
        for name, stored in recognized.heads.items()
    }
    backbone = build(
        recognized.architecture, recognized.config, recognized.backbone, wanted, target, str(folder)
    )
    if "runnel" not in config and (strange := _strange_code(config)):
        log.warning(
            "%s names code, %s, which is not run: its tensors fit a plain %s, as which it is read",
            folder,
            strange,
            backbone.title,
        )
    return Checkpoint(
        backbone, heads, recognized.layout, folder if folder.is_dir() else folder.parent, config
    )


@plain_numbers()
def build_backbone(
    architecture: str,
    config: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Build a backbone from tensors in memory, with the checks that a file's tensors get. Tensors
    in the wanted dtype are used, not copied.
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
    config: Mapping[str, object] | None, tensors: Mapping[str, Stored], where: str
) -> Recognized:
    """Decide what a checkpoint is, by its config or, without one, by names and shapes. Reads no
    weights.
    """
    config = config or {}
    refuse_wrapped(tensors, where)
    if "runnel" in config:
        recognized = _from_runnel(config["runnel"], tensors, where)
    else:
        _refuse_foreign(config, where)
        recognized = _from_published(config, tensors, where)
        # a config without a known type does not contradict the tensors
        declared = next(
            (cls for cls in FAMILIES if config.get("model_type") in cls.model_types),
            BACKBONES[recognized.architecture],
        )
        # Mistral's folders, with "dim", say "mamba" for Mamba-2 too.
        if "dim" not in config:
            expect_agreement(
                {"the model": declared.title},
                {"the model": BACKBONES[recognized.architecture].title},
                where,
            )
    # A config that contradicts the tensors is refused here, with one clear error. Later, hundreds
    # of tensors would be missing or mis-shaped.
    expect_agreement(
        {"num_layers": recognized.config.num_layers},
        {"num_layers": count_layers(recognized.backbone)},
        where,
    )
    largest = max(
        (size for stored in recognized.backbone.values() for size in stored.shape), default=0
    )
    for name, value in recognized.config.to_dict().items():
        expect_fit(
            name == "num_layers" or type(value) is not int or value <= largest,
            f"tensors, of at most {largest:,} rows or columns, for {name} {value!r} of its config",
            where,
        )
    return recognized._replace(
        layout=f"{BACKBONES[recognized.architecture].title}, {recognized.layout} layout"
    )


def _from_published(
    config: Mapping[str, object], tensors: Mapping[str, Stored], where: str
) -> Recognized:
    for family in FAMILIES:
        # imported here because runnel's own folders need none of them
        formats = import_module(f"{family.__module__.rpartition('.')[0]}.formats")
        if formats.recognizes(config, tensors.keys()):
            with valid_config(where):
                return formats.read(config, tensors, where)
    names = some(sorted(tensors)) or "none"
    raise CheckpointError(
        f"{where} is of an unknown kind: its tensors ({names}) are those of none of {_TITLES}"
    )


def _refuse_foreign(config: Mapping[str, object], where: str) -> None:
    """Raise CheckpointError if the config says that the model computes something else than the
    family whose tensors it seems to have.
    """
    kind = str(config.get("model_type", ""))
    problem = None
    if config.get("quantization_config"):
        problem = "it has quantized weights (quantization_config); load the unquantized checkpoint"
    elif (
        kind and "dim" not in config and not any(kind in family.model_types for family in FAMILIES)
    ):
        problem = (
            f"it is a {kind!r} model, expected {_TITLES}; sentence-transformers reads others, as"
            " embedders or rerankers"
        )
    elif (said := reads_both_ways(config)) is not None:
        problem = (
            f"{said}, so its authors read a text both ways, which runnel does not do with recurrent"
            " models"
        )
    elif kind not in _RECURRENT_TYPES and (strange := _strange_code(config)):
        problem = (
            f"auto_map names code, {strange}, which is never run; if the model is a plain one of"
            " its kind, remove it"
        )
    if problem:
        raise CheckpointError(f"{where}/config.json: {problem}")


def _strange_code(config: Mapping[str, object]) -> str | None:
    """Return a class that auto_map of a config.json names and that is not a known copy of the
    authors' class; None if there is none.
    """
    return next((name for name in code_classes(config) if not _KNOWN_CODE.search(name)), None)


@dataclass(frozen=True)
class _Declared:
    """What the config.json of a runnel folder says of its backbone."""

    architecture: str
    config: dict[str, object]


def _from_runnel(description: object, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Recognize a folder that runnel wrote: tensors `backbone.*` and `heads.*`, and the backbone's
    config from `to_dict`.
    """
    backbone = description.get("backbone") if isinstance(description, Mapping) else None
    declared = _Declared(**arguments(_Declared, backbone, f"{where}/config.json: the backbone"))
    config = parse_config(declared.architecture, declared.config, where)
    scales = {  # not tensors of their own: `_with_scale` looks them up
        name
        for name in tensors
        if name.endswith(".scale") and name.removesuffix(".scale") in tensors
    }
    scaled = {name: _with_scale(name, tensors, where) for name in tensors if name not in scales}
    heads = {
        name.removeprefix("heads."): scaled.pop(name)
        for name in list(scaled)
        if name.startswith("heads.")
    }
    stored = renamed(scaled, lambda name: name.removeprefix("backbone."), where, unused="")
    return Recognized(declared.architecture, "runnel", config, stored, heads)


def _with_scale(name: str, tensors: Mapping[str, Stored], where: str) -> Stored:
    """Return the tensor `name`, multiplied by its per-row scale if it is stored in 8 bits."""
    matrix = tensors[name]
    scale = tensors.get(name + ".scale")
    if scale is None:
        return matrix
    expect_fit(
        len(matrix.shape) == 2 and scale.shape == matrix.shape[:1],
        f"tensor '{name}.scale' is {scale.shape}, expected {matrix.shape[:1]}, one per row",
        where,
    )

    def product() -> Tensor:  # multiplies its own copy in place, which needs no further memory
        return matrix.read().to(torch.float32, copy=True).mul_(scale.read()[:, None])

    return Stored(matrix.shape, matrix.file, product, int8_and_scale=(matrix, scale))


def parse_config(architecture: str, values: Mapping[str, object], where: str) -> BackboneConfig:
    """Return the config of `architecture` from its `to_dict` form."""
    with valid_config(where):
        expect_choice(architecture, BACKBONES, "the architecture")
        return BACKBONES[architecture].config_class.from_dict(values, f"{where}: its config")


def meta_backbone(architecture: str, config: BackboneConfig) -> Backbone:
    """Return a backbone on the meta device: names and shapes, no memory and no numbers."""
    with torch.device("meta"), NoRandomNumbers():
        return BACKBONES[architecture](config)


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
    expected = shapes_of(backbone.state_dict())
    check_tensors(stored, expected, where)
    # The dtypes of the weights that `Backbone.matrices` names, and of the others.
    matrices = dtype
    small = torch.float64 if dtype == torch.float64 else torch.float32
    in_8_bits = tuple[str, ...]()  # ends of names, of which `endswith` finds none
    if dtype == torch.int8:
        check_int8(backbone.title, backbone.int8_layers, device, where)
        matrices = wanted_dtype("auto", device)
        in_8_bits = tuple(f"{end}.weight" for end in backbone.int8_layers)
        with torch.device("meta"), NoRandomNumbers():
            replace_linear(backbone, backbone.int8_layers)
    tensors = {}
    for name in expected:
        if name.endswith(in_8_bits):
            # Read in any case, because `read_tensor` checks the numbers. If the file has 8 bits,
            # those are used as they are, without a second rounding.
            weight = read_tensor(name, stored[name], where)
            parts = stored[name].int8_and_scale
            q, scale = quantize(weight) if parts is None else (part.read() for part in parts)
            tensors[name] = q.contiguous()
            tensors[name + "_scale"] = scale.float().contiguous()
        else:
            target = matrices if name.endswith(backbone.matrices) else small
            tensors[name] = read_tensor(name, stored[name], where, target, device)
    backbone.load_state_dict(tensors, strict=True, assign=True)
    backbone.eval()
    return backbone


class NoRandomNumbers(TorchFunctionMode):
    """Skip random initialization. On the meta device it has no effect, except that it imports
    torch's compiler, which takes seconds.

    A torch function mode sees every call of a torch function made inside it. It does not see
    `trunc_normal_`, so that function is replaced from `__enter__` to `__exit__`.
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

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        setattr(torch.nn.init, "_no_grad_trunc_normal_", self._truncated)  # noqa: B010

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Any:
        if func in self._RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
