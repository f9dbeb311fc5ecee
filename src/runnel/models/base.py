"""A model folder: backbone, tokenizer, heads and templates, loaded and saved as one thing.

config.json        architecture, heads, templates, prompts, markers, weight format; the key "runnel" marks the layout
model.safetensors  `backbone.*` and `heads.*`; with int8 weights each matrix has a `.scale` of one number per row
tokenizer.json     Hugging Face tokenizers file
README.md          model card
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint import Checkpoint, load_checkpoint, resolve_folder
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError
from runnel.models.heads import HEADS, EndScore, EndVector, TokenFeatures
from runnel.text.templates import DOCUMENT, DOCUMENT_THEN_QUERY, QUERY_LINE_THEN_DOCUMENT, Template
from runnel.text.tokenizer import Tokenizer

_VERSION = 1
_BUILT_IN = {"pocket": Path(__file__).parent / "pocket"}
# Templates of a bare checkpoint: the papers'.
_PLAIN_TEMPLATES = {"document": DOCUMENT, "rerank": DOCUMENT_THEN_QUERY, "sentences": QUERY_LINE_THEN_DOCUMENT}


@dataclass(eq=False)
class Model:
    """The parts that the three kinds of model share.

    Args:
        heads: name -> head: "features" (`TokenFeatures`), "embed", "sentences", "rerank"; any may be missing.
        templates: "document" (every text of an embedder; queries differ by their prompt), "rerank", "sentences".
        prompts: text put before a query or a document, by name ("query", "document", or a task's).
        source: where it was loaded from, for messages.
    """

    backbone: Backbone
    tokenizer: Tokenizer
    heads: nn.ModuleDict
    templates: dict[str, Template]
    prompts: dict[str, str] = field(default_factory=dict)
    source: str = "memory"
    card: str = ""

    def __post_init__(self) -> None:
        self.backbone.requires_grad_(False)
        self.heads.requires_grad_(False)
        features = self.heads["features"] if "features" in self.heads else None
        self.features: TokenFeatures | None = features if isinstance(features, TokenFeatures) else None
        self.weight = self.features.weight().detach() if self.features else torch.ones(self.backbone.vocab_size)
        self.engine = self.new_engine()

    def new_engine(self, step_tokens: int | None = None, memory_bytes: int | None = None) -> Engine:
        """An engine for this model; each model has one of the default size, `self.engine`."""
        marks = self.features.mark_vectors.detach() if self.features else None
        return Engine(self.backbone, step_tokens, memory_bytes, mark_vectors=marks)

    def head(self, name: str) -> nn.Module:
        """The head for a job.

        Raises:
            CheckpointError: the model has none.
        """
        if name not in self.heads:
            have = ", ".join(sorted(set(self.heads) - {"features"})) or "none"
            raise CheckpointError(
                f"{self.source} has no {name!r} head (it has: {have}); it was not trained for this job. "
                "Use another model, or train that head"
            )
        return self.heads[name]

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write the model folder. Loading it gives bit-equal outputs with weights="as_is".

        Args:
            weights: "as_is", or "int8": every backbone matrix and the token tables in 8 bits with one scale per row.
        """
        if weights not in ("as_is", "int8"):
            raise InputError(f'weights must be "as_is" or "int8", got {weights!r}')
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("backbone", self.backbone), ("heads", self.heads)):
            for name, tensor in module.state_dict().items():
                key = f"{prefix}.{name}"
                if weights == "int8" and prefix == "backbone" and tensor.ndim == 2 and tensor.shape[1] >= 64:
                    tensors[key], tensors[key + ".scale"] = _quantize_rows(tensor)
                else:
                    tensors[key] = tensor.detach().contiguous().clone()
        config = {
            "runnel": {
                "version": _VERSION,
                "backbone": {"architecture": self.backbone.architecture, "config": self.backbone.config.to_dict()},
                "heads": {name: _head_config(head) for name, head in self.heads.items()},
                "templates": {name: template.to_dict() for name, template in self.templates.items()},
                "prompts": self.prompts,
                "markers": {"begin": self.tokenizer.begin_id, "end": self.tokenizer.end_id},
            }
        }
        self.tokenizer.save(folder)
        (folder / "README.md").write_text(self.card or f"# A runnel model\n\nArchitecture: {self.backbone.architecture}.\n")
        save_file(tensors, folder / "model.safetensors.partial", metadata={"format": "pt"})
        (folder / "model.safetensors.partial").replace(folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_model(name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto") -> Model:
    """Load a model folder, a bare checkpoint, a sentence-transformers folder, a hub id or "pocket".

    A bare checkpoint gets the papers' templates and an end-marker embedder; the single-pass scanner layout also gets its
    sentence head. A sentence-transformers folder must start with a recurrent transformers checkpoint and pool the last
    token; its prompts and end marker are read from its files.

    Raises:
        CheckpointError: nothing there, or it cannot be used; the message says why.
    """
    folder = _BUILT_IN.get(str(name)) or resolve_folder(name)
    checkpoint = load_checkpoint(folder, dtype=dtype, device=device)
    config = _read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    if "runnel" in config:
        return _from_folder(folder, config["runnel"], checkpoint, str(name))
    heads = nn.ModuleDict({"embed": EndVector()})
    if checkpoint.heads:
        heads["sentences"] = _scanner_head(checkpoint.heads, checkpoint.backbone.hidden_size)
    templates, prompts = dict(_PLAIN_TEMPLATES), {}
    if (folder / "modules.json").exists():
        prompts = _read_sentence_transformers(folder)
        before, after = _framing(folder)
        templates["document"] = Template.parse(before + "{document}" + after)
    return Model(checkpoint.backbone, Tokenizer.load(folder), heads, templates, prompts, source=str(name))


def _from_folder(folder: Path, config: Mapping[str, Any], checkpoint: Checkpoint, source: str) -> Model:
    if config.get("version") != _VERSION:
        raise CheckpointError(
            f"{source} has model format {config.get('version')!r}, this runnel reads {_VERSION}; upgrade runnel"
        )
    heads = nn.ModuleDict({name: _build_head(head, checkpoint.backbone) for name, head in config["heads"].items()})
    wanted = heads.state_dict()
    missing, extra = sorted(set(wanted) - set(checkpoint.heads)), sorted(set(checkpoint.heads) - set(wanted))
    if missing or extra:
        raise CheckpointError(f"{source}: head tensors do not fit config.json; missing {missing[:3]}, unexpected {extra[:3]}")
    heads.load_state_dict(checkpoint.heads)
    markers = config["markers"]
    tokenizer = Tokenizer.load(folder, begin=markers["begin"], end=markers["end"])
    templates = {name: Template.from_dict(value) for name, value in config["templates"].items()}
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    return Model(checkpoint.backbone, tokenizer, heads, templates, dict(config["prompts"]), source, text)


def _build_head(config: Mapping[str, Any], backbone: Backbone) -> nn.Module:
    options = dict(config)
    kind = options.pop("kind")
    if kind == "token_features":
        return TokenFeatures(backbone.vocab_size, backbone.hidden_size)
    if kind not in HEADS:
        raise CheckpointError(f"unknown head kind {kind!r} in config.json; this runnel knows {', '.join(sorted(HEADS))}")
    return EndVector() if kind == "end_vector" else HEADS[kind](backbone.hidden_size, **options)


def _head_config(head: nn.Module) -> dict[str, object]:
    if isinstance(head, TokenFeatures):
        return {"kind": "token_features"}
    kind = next(name for name, cls in HEADS.items() if type(head) is cls)
    return {"kind": kind, **getattr(head, "options", {})}


def _scanner_head(tensors: Mapping[str, Tensor], hidden_size: int) -> EndScore:
    weight, bias = tensors["weight"], tensors.get("bias")
    head = EndScore(hidden_size, outputs=weight.shape[0], bias=bias is not None)
    head.linear.load_state_dict({"weight": weight.float()} | ({"bias": bias.float()} if bias is not None else {}))
    return head


def _read_sentence_transformers(folder: Path) -> dict[str, str]:
    """Prompts of a sentence-transformers folder, after checking that its modules are ones this package equals."""
    for module in _read_json(folder / "modules.json", expect=list)[1:]:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _read_json(folder / module["path"] / "config.json")
            mode = pooling.get("pooling_mode") or next(
                (k for k, v in pooling.items() if k.startswith("pooling_mode_") and v is True), None
            )
            if mode not in ("lasttoken", "pooling_mode_lasttoken"):
                raise CheckpointError(
                    f"{folder} pools by {mode!r}; a recurrent embedder here pools the last token (pooling_mode lasttoken)"
                )
        elif kind != "Normalize":
            raise CheckpointError(
                f"{folder} has a module {module['type']!r} after pooling; only Pooling and Normalize are supported"
            )
    settings = folder / "config_sentence_transformers.json"
    return {k: v for k, v in _read_json(settings).get("prompts", {}).items() if v} if settings.exists() else {}


def _framing(folder: Path) -> tuple[str, str]:
    """The special tokens that a folder's tokenizer puts around a text, in template notation."""
    encoding = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a")
    marks = [
        "{token:" + token + "}" if special else ""
        for token, special in zip(encoding.tokens, encoding.special_tokens_mask, strict=True)
    ]
    text = marks.index("") if "" in marks else len(marks)
    return "".join(marks[:text]), "".join(marks[text:])


def _read_json(path: Path, expect: type = dict) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, expect):
        raise CheckpointError(f"{path} should hold a JSON {expect.__name__}, got {type(value).__name__}")
    return value


def _quantize_rows(tensor: Tensor) -> tuple[Tensor, Tensor]:
    scale = (tensor.detach().float().abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
    return (tensor.detach().float() / scale).round().to(torch.int8), scale[:, 0].contiguous()
