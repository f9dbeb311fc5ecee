r"""Transformer baselines as models: how a text is pooled, how a pair is written and how it is scored.

                     text: vector of                 pair: vector of            pair: template "rankmamba" and "ssm-rerankers"
encoders             first token [CLS]               first token [CLS]          [CLS]{q}[SEP]{d}[SEP]
                                                                                [CLS] ; query: {q} ; document: {d}
decoders             last token [EOS], appended      last token [EOS]           document: {d}\n\nquery: {q}[EOS]
                                                                                document: {d} ; query: {q} ;[EOS]
BART                 the decoder's first vector      the same                   as encoders
T5                   mean of the encoder's vectors   the decoder's first        as encoders

These are the choices of papers A (texts), B and C (pairs); every marker is the model's own. `pooling` changes the vector of a
text: "cls", "eos" or "mean". For encoder-decoders it also selects the side: the decoder's first vector, the decoder's vector at
the last token (as in the transformers library's BART classifier), or the mean of the encoder's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.files import Checkpoint, open_weights
from runnel.backbones.checkpoint.tensors import check_tensors, from_tensors
from runnel.backbones.transformer.config import FAMILIES, Family, Output, TransformerConfig
from runnel.backbones.transformer.formats import load
from runnel.backbones.transformer.model import Transformer
from runnel.errors import CheckpointError, InputError
from runnel.models.bare import Parts
from runnel.models.classifier_modules import read_classifier
from runnel.models.foreign import Job, SentenceTransformer, pair_template, read_sentence_transformer, text_template, warn
from runnel.models.heads import EndScore, Pooling, vector_head
from runnel.models.published_heads import DenseScore, Norm
from runnel.text.templates import CAPITAL_DOCUMENT_THEN_QUERY, DOCUMENT_SEMICOLON_QUERY, DOCUMENT_THEN_QUERY, Template
from runnel.text.tokenizer import Tokenizer

# Two from the papers, one from paper B's checkpoints, and the tokenizer's own.
PAIRS = ("rankmamba", "rankmamba-code", "ssm-rerankers", "pair")
_ONE_WAY = {
    "rankmamba": DOCUMENT_THEN_QUERY,
    "rankmamba-code": CAPITAL_DOCUMENT_THEN_QUERY,
    "ssm-rerankers": DOCUMENT_SEMICOLON_QUERY,
}
_SIDES: dict[Pooling, Output] = {"cls": "first", "eos": "decoder", "mean": "encoder"}  # for an encoder-decoder
_CLASSIFIER = "classification_head.out_proj.weight"  # in the library's encoder-decoders, at the last token


def load_baseline(
    folder: Path,
    config: Mapping[str, Any],
    dtype: str | torch.dtype,
    device: str,
    *,
    pooling: Pooling | None = None,
    template: str | None = None,
    job: Job = "embed",
) -> tuple[Checkpoint, Parts]:
    """Load a transformer and the other parts of a model; arguments as for `load_model`."""
    family = FAMILIES[config["model_type"]]
    pooled = _pooling(family, TransformerConfig.of(config).causal, pooling, read_sentence_transformer(folder))
    output: Output | None = None
    if family.kind == "encoder-decoder":
        scored = "eos" if any(name.endswith(_CLASSIFIER) for name in open_weights(folder)) else "cls"
        output = _SIDES[pooled if job == "embed" else scored]  # type: ignore[index]
    checkpoint = load(folder, dtype, device, output=output)
    return checkpoint, read_baseline(folder, checkpoint, pooling, template)


def read_baseline(folder: Path, checkpoint: Checkpoint, pooling: Pooling | None = None, template: str | None = None) -> Parts:
    """Read tokenizer, heads, templates and prompts of a transformer from a folder that runnel did not write."""
    backbone = checkpoint.backbone
    assert isinstance(backbone, Transformer)
    family = backbone.family
    tokenizer = Tokenizer.load(folder)
    theirs = read_sentence_transformer(folder)
    config = replace(
        backbone.config,
        separator=tokenizer.end_id if family.segments else None,
        max_tokens=theirs.max_tokens
        if theirs
        else None,  # the limit where sentence-transformers cuts; runnel does not cut by default
    )
    backbone.take(config)
    pooled = _pooling(family, config.causal, pooling, theirs)
    heads = nn.ModuleDict({"embed": vector_head(pooled)})
    if theirs is not None and theirs.classifier:
        scorer: nn.Module | None = read_classifier(theirs.classifier, theirs.pooling, backbone.hidden_size)
    else:
        scorer = _scorer(checkpoint, family)
    if scorer is not None:
        heads["rerank"] = scorer
    exact = theirs is not None and (folder / "tokenizer.json").exists()  # read texts as sentence-transformers does
    text = text_template(folder) if exact else _around_text(folder, tokenizer, family)
    if theirs is not None:
        warn(folder, theirs, pooled, text)
    before = text.partition("{document}")[0]
    own = scorer is not None and family.kind != "decoder"
    pair = pair_notation(
        template or ("pair" if own and pair_template(folder) else "rankmamba"), family, folder, tokenizer, before
    )
    if theirs is None and family.kind == "decoder" and text.endswith("{document}"):
        text += "{end}"
    templates = {"document": Template.parse(text), "rerank": Template.parse(pair)}
    return Parts(tokenizer, heads, templates, theirs.prompts if theirs else {})


def pair_notation(name: str, family: Family | None, folder: Path, tokenizer: Tokenizer, before: str) -> str:
    """Return the notation of a pair template.

    Args:
        name: one of `PAIRS`.
        family: None for recurrent models, which read as decoders do.
        before: the special tokens before a decoder's texts, in template notation.

    Raises:
        InputError: the name is unknown, the tokenizer has no pair template, or the template does not fit the model's family.
    """
    if name == "pair":
        notation = pair_template(folder) if (folder / "tokenizer.json").exists() else None
        if notation is None:
            raise InputError(
                f"the tokenizer of {folder} puts nothing between the texts of a pair; use rankmamba or ssm-rerankers"
            )
        return notation
    if name not in PAIRS:
        raise InputError(f"unknown pair template {name!r}; the templates are {', '.join(PAIRS)}")
    if family is None or family.kind == "decoder":
        return before + str(_ONE_WAY[name])
    if name == "rankmamba-code":
        raise InputError(
            f"the pair template 'rankmamba-code' is for decoders and recurrent models, this is {family.title}; use rankmamba"
        )
    begin = "" if tokenizer.begin_id is None else "{begin}"  # T5 has none
    return begin + ("{query}{end}{document}{end}" if name == "rankmamba" else " ; query: {query} ; document: {document}")


def check_pooling(backbone: Backbone, pooling: Pooling) -> None:
    """Raise InputError if a loaded backbone does not support this pooling."""
    if pooling == "cls" and (backbone.config.causal if isinstance(backbone, Transformer) else True):
        raise _causal(backbone.title)
    if isinstance(backbone, Transformer) and backbone.family.kind == "encoder-decoder":
        output = backbone.config.output
        if _SIDES[pooling] != output:
            kept = next(name for name, side in _SIDES.items() if side == output)
            raise InputError(
                f"this folder was saved from {backbone.title} with {kept!r} pooling; for {pooling!r} load the original checkpoint"
            )


def _causal(title: str) -> InputError:
    return InputError(f"{title} is causal: its first token cannot represent the text; use pooling 'eos' or 'mean'")


def _pooling(family: Family, causal: bool, asked: Pooling | None, theirs: SentenceTransformer | None) -> Pooling:
    """Return the requested pooling, or else the one in the folder's files, or else the papers' choice."""
    chosen = asked or (theirs.pooling if theirs else None)
    if chosen == "cls" and causal:
        raise _causal(family.title)
    if chosen is not None:
        return chosen
    return "mean" if family.title == "T5" else "eos" if family.kind == "decoder" else "cls"


def _around_text(folder: Path, tokenizer: Tokenizer, family: Family) -> str:
    """Return a text's template with the tokenizer's special tokens; encoders always get their markers."""
    text = text_template(folder)
    if text != "{document}" or (family.kind == "decoder" and (folder / "tokenizer.json").exists()):
        return text
    begin = "" if tokenizer.begin_id is None else "{begin}"
    return begin + text + ("" if family.kind == "decoder" else "{end}")


def _scorer(checkpoint: Checkpoint, family: Family) -> nn.Module | None:
    """Return the head of a published cross-encoder, if the checkpoint has one with one output, or with two (no, yes)."""
    found, width = dict(checkpoint.heads), checkpoint.backbone.hidden_size
    if family.kind == "encoder-decoder":
        names, pooling = ("classification_head.dense", "classification_head.out_proj"), "eos"
    elif family.kind == "decoder":
        names, pooling = ("", "score"), "eos"
    elif family.title == "ModernBERT":
        return _modern_scorer(checkpoint)
    elif family.title == "BERT":
        names, pooling = ("pooler.dense", "classifier"), "cls"
    else:
        names, pooling = ("classifier.dense", "classifier.out_proj"), "cls"
    dense, linear = ({end: found[f"{name}.{end}"] for end in ("weight", "bias") if f"{name}.{end}" in found} for name in names)
    if "weight" not in linear or len(linear["weight"]) > 2:  # more outputs: a classifier for another task
        return None
    outputs = len(linear["weight"])
    try:
        if not names[0]:
            head: EndScore | DenseScore = EndScore(width, outputs, "bias" in linear, pooling)  # type: ignore[arg-type]
        else:
            head = DenseScore(width, outputs, "gelu" if family.title == "ELECTRA" else "tanh", pooling)  # type: ignore[arg-type]
            head.dense.load_state_dict(dense)
        head.linear.load_state_dict(linear)
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint.folder}: its classifier does not fit a {family.title} of width {width}: {error}"
        ) from error
    return head


def _modern_scorer(checkpoint: Checkpoint) -> nn.Module | None:
    """Return the same for ModernBERT, whose classifier's pooling, bias and norm are in its config."""
    assert isinstance(checkpoint.backbone, Transformer)
    facts, found = checkpoint.backbone.config.for_library(), dict(checkpoint.heads)
    if not 0 < len(found.get("classifier.weight", ())) <= 2:
        return None
    if facts.classifier_activation != "gelu":
        raise CheckpointError(
            f"{checkpoint.folder}: classifier_activation is {facts.classifier_activation!r} in its config; expected 'gelu', as "
            "in every published model"
        )
    head = DenseScore(
        checkpoint.backbone.hidden_size,
        len(found["classifier.weight"]),
        "gelu",
        facts.classifier_pooling,
        facts.classifier_bias,
        Norm(facts.norm_eps, facts.norm_bias),
    )
    names = {"head.dense": "dense", "head.norm": "norm", "classifier": "linear"}
    tensors = {f"{names[stem]}.{end}": tensor for name, tensor in found.items() for stem, _, end in [name.rpartition(".")]}
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    check_tensors(from_tensors(tensors, "the classifier"), expected, str(checkpoint.folder))
    head.load_state_dict(tensors)
    return head
