"""Facts about each transformer architecture, the config of a `Transformer`, and the optional library."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch

from runnel.backbones.base import BackboneConfig
from runnel.backbones.checkpoint.values import code_classes, reads_both_ways
from runnel.errors import BackendUnavailable, CheckpointError, InputError, needing

Output = Literal["encoder", "decoder", "first"]
OUTPUTS: tuple[Output, ...] = ("encoder", "decoder", "first")


@dataclass(frozen=True)
class Family:
    """An architecture: its name, its class in the transformers library, and how it reads.

    `segments`: token types tell the second text of a pair from the first. `flash`: the library has it with flash attention.
    """

    title: str
    model: str
    kind: Literal["encoder", "decoder", "encoder-decoder"]
    segments: bool = False
    flash: bool = True


FAMILIES = {  # by model_type
    "bert": Family("BERT", "BertModel", "encoder", segments=True),
    "roberta": Family("RoBERTa", "RobertaModel", "encoder"),
    "electra": Family("ELECTRA", "ElectraModel", "encoder", segments=True),
    "modernbert": Family("ModernBERT", "ModernBertModel", "encoder"),
    "bart": Family("BART", "BartModel", "encoder-decoder"),
    "t5": Family("T5", "T5Model", "encoder-decoder", flash=False),
    "opt": Family("OPT", "OPTModel", "decoder"),
    "gpt_neox": Family("GPT-NeoX", "GPTNeoXModel", "decoder"),
    "llama": Family("Llama", "LlamaModel", "decoder"),
    "mistral": Family("Mistral", "MistralModel", "decoder"),
    "qwen2": Family("Qwen2", "Qwen2Model", "decoder"),
}
_BOTH_WAYS = ("llama", "mistral", "qwen2")  # decoders compared with attention written out (tests/backbones)
_GTE = "modeling_qwen.Qwen2Model"  # code of the GTE-Qwen2 folders: Qwen2 that honors is_causal, as the library does from 5.2 on
# What the library's own models give, and T5 as an embedder: sentence-T5 is an encoder alone.
_DEFAULT_OUTPUT: dict[str, Output] = {"bart": "decoder", "t5": "encoder"}


def recognizes(config: Mapping[str, Any] | None) -> bool:
    """Return whether a config.json is of a transformer read here, not in Mistral's own layout ("dim") or runnel's."""
    return config is not None and str(config.get("model_type")) in FAMILIES and not {"dim", "runnel"} & config.keys()


@dataclass(frozen=True)
class TransformerConfig(BackboneConfig):
    """Shape of a transformer.

    Args:
        library: the fields of the transformers library's config.json, "model_type" among them.
        output: what the hidden vectors of an encoder-decoder are (see above); "encoder" and "decoder" for the others.
        separator: id of the token after which the second text of a pair begins, for models with token types; None: there are
            no pairs, all tokens are of the first type.
        max_tokens: the longest text that its makers let it read, special tokens included; None: as its positions allow.
    """

    library: dict[str, Any]
    output: Output
    separator: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.library.get("model_type") not in FAMILIES:
            raise InputError(f"unknown model_type {self.library.get('model_type')!r}; known are {', '.join(FAMILIES)}")
        allowed = OUTPUTS if self.family.kind == "encoder-decoder" else (self.family.kind,)
        if self.output not in allowed:
            raise InputError(f"the output of {self.family.title} must be {' or '.join(map(repr, allowed))}, got {self.output!r}")

    @classmethod
    def of(cls, library: Mapping[str, Any], output: Output | None = None) -> TransformerConfig:
        """Read a config.json; the default output is "decoder" for BART and "encoder" for T5."""
        kind = str(library.get("model_type"))
        family = FAMILIES.get(kind)
        native = "decoder" if family is not None and family.kind == "decoder" else "encoder"
        if family is not None:
            _check_reading(family, library)
        # What says how to load, or names code and kernels to fetch, is no part of a model's shape.
        loading = ("auto_map", "architectures", "dtype", "torch_dtype", "transformers_weights", "fusion_config")
        shape = {name: value for name, value in library.items() if name not in loading and not name.startswith("_")}
        return cls(shape, output or _DEFAULT_OUTPUT.get(kind, native))  # type: ignore[arg-type]

    @property
    def family(self) -> Family:
        return FAMILIES[self.library["model_type"]]

    @property
    def causal(self) -> bool:
        """Whether a token is read with earlier tokens only. Decoders whose config has "is_causal": false read all."""
        return self.family.kind == "decoder" and self.library.get("is_causal") is not False

    @property
    def num_layers(self) -> int:
        return int(self.for_library().num_hidden_layers)

    def for_library(self, attention: str = "sdpa") -> Any:
        """Return the transformers library's config object.

        Raises:
            MissingDependency: the library is not installed.
            CheckpointError: it does not take these values, or with them a text's vectors depend on other texts.
        """
        values = {name: value for name, value in self.library.items() if name != "model_type"}
        configs = library().AutoConfig
        try:
            found = configs.for_model(self.library["model_type"], **values, attn_implementation=attention)
        except Exception as error:  # each of its checks has errors of its own kind
            reason = " ".join(str(error).split())
            raise CheckpointError(f"the transformers library does not take this {self.family.title} config: {reason}") from error
        positions = getattr(found, "rope_parameters", None) or {}  # ModernBERT has them by type of layer
        kinds = [one.get("rope_type") for one in (positions, *positions.values()) if isinstance(one, dict)]
        if scaling := next((kind for kind in kinds if kind in ("dynamic", "longrope")), None):
            raise CheckpointError(
                f"this {self.family.title} scales its positions by {scaling!r}, so the vectors of a text change with the longest "
                "text read with or before it; set another rope_type (yarn, linear) in its config.json"
            )
        return found


def _check_reading(family: Family, library: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless this package reads models of this config as their authors do."""
    code = next(iter(code_classes(library)), None)
    both_ways = family.kind == "decoder" and library.get("is_causal") is False
    if code is not None and not (both_ways and code.rsplit("--", 1)[-1] == _GTE):
        raise CheckpointError(
            f"config.json: auto_map names code, {code}, which is never run here and may read a text differently from "
            f"{family.title} (GritLM and GTE-Qwen2 read both ways, Jina v2 uses ALiBi). If it only copies the "
            f'transformers library\'s {family.model}, remove auto_map from config.json; add "is_causal": false there if it is a '
            "decoder that reads both ways"
        )
    positions = library.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise CheckpointError(
            f"position_embedding_type is {positions!r} in this {family.title} config; expected 'absolute', the only one that the "
            "transformers library computes. Use another model"
        )
    said = None if both_ways or family.kind != "decoder" else reads_both_ways(library)
    if said is not None:
        raise CheckpointError(
            f"config.json: {said}, so its authors read a text both ways, and the transformers library's {family.model} reads it "
            'causally; add "is_causal": false to config.json to read both ways (Llama, Mistral, Qwen2), true to read causally'
        )
    if both_ways and library["model_type"] not in _BOTH_WAYS:
        raise CheckpointError(
            f"is_causal is False in this {family.title} config; of the decoders, Llama, Mistral and Qwen2 can be read both ways. "
            "Remove is_causal from config.json to read it causally"
        )


def longest(facts: Any) -> int | None:
    """Return the longest text, special tokens included, that a model of this config can read; None: any."""
    if facts.model_type == "t5":  # relative positions in buckets
        return None
    positions = int(facts.max_position_embeddings)
    if facts.model_type == "roberta":  # numbered after the padding's position
        return positions - (facts.pad_token_id or 0) - 1
    rope = getattr(facts, "rope_parameters", None) or {}
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    return max(positions, int(original * factor)) if original and factor else positions


def choose_attention(wanted: str, family: Family, device: torch.device, dtype: torch.dtype) -> str:
    """Return the library's name for "auto" (flash attention where it runs, else SDPA), "flash", "sdpa" or "eager".

    Raises:
        InputError: another name.
        BackendUnavailable: flash attention was asked for and does not run here.
    """
    if wanted not in ("auto", "flash", "sdpa", "eager"):
        raise InputError(f'attention must be "auto", "flash", "sdpa" or "eager", got {wanted!r}')
    problem = (
        f"the transformers library has no {family.title} with it"
        if not family.flash
        else f"it needs a CUDA device, this is {device.type!r}"
        if device.type != "cuda"
        else f"it needs bfloat16 weights, these are {dtype}"
        if dtype != torch.bfloat16
        else "the package flash-attn is not installed"
        if importlib.util.find_spec("flash_attn") is None
        else None
    )
    if wanted == "flash" and problem:
        raise BackendUnavailable(f"flash attention does not run here: {problem}; use attention='auto' or 'sdpa'")
    return "flash_attention_2" if problem is None and wanted != "sdpa" and wanted != "eager" else wanted.replace("auto", "sdpa")


def library() -> ModuleType:
    """Return the transformers library."""
    with needing("transformer baselines need the transformers library", "baselines"):
        import transformers
    return transformers


def model_class(config: TransformerConfig) -> Any:
    """Return the library's class for a config. T5 as an encoder has its own class: such checkpoints have no decoder."""
    alone = config.family.title == "T5" and config.output == "encoder"
    return getattr(library(), "T5EncoderModel" if alone else config.family.model)


def options(config: TransformerConfig) -> dict[str, Any]:
    """Return arguments of the library's class: BERT's pooler belongs to a head and is not in every checkpoint."""
    return {"add_pooling_layer": False} if config.library["model_type"] in ("bert", "roberta") else {}
