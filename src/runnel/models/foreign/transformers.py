r"""Transformers as models: how a text is pooled, how a pair is written, and which library reads
them.

BERT-like embedders run as an `Encoder`, with runnel's own layers. All others, and every
cross-encoder (a transformer that reads a query and a document as one pair, and scores it), run as a
`Library`: the library sentence-transformers reads, pools and scores (`backbones/library.py`).

    is_transformer      is it a transformer at all? If not, it is a recurrent checkpoint (`bare.py`)
    load_transformer    chooses `Encoder` or `Library`, the pooling and the templates
    read_encoder        the parts of an `Encoder` model
    apply_choices       the user's pooling and pair template, for all other models
    pair_notation       how a pair is written

Encoders read a text both ways, decoders from left to right; encoder-decoders (T5) have both.

                  text: vector of           template "rankmamba" of a pair
encoders          first token [CLS]         as their tokenizer writes pairs
encoder-decoders  the same; T5: mean        the same
decoders          last token [EOS], added   document: {d}\n\nquery: {q}[EOS]

The template "ssm-rerankers" of a pair is "[CLS] ; query: {q} ; document: {d}" for encoders and
encoder-decoders, and "document: {d} ; query: {q} ;[EOS]" for decoders.

These are the choices of papers A (texts), B and C (pairs) in docs/papers.md; every marker is the
model's own.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from runnel.backbones.checkpoint.config_values import code_classes, reads_both_ways
from runnel.backbones.checkpoint.load import KNOWN_TYPES, load_backbone
from runnel.backbones.encoder.formats import recognizes as is_bert
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.library import is_decoder, open_library, require_library
from runnel.checks import expect_choice
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError
from runnel.models.foreign.settings import (
    TEMPLATES,
    pair_template,
    published_prompts,
    read_sentence_transformer,
    text_template,
    warn,
)
from runnel.models.head import Pooling, check_pooling
from runnel.models.model import Job, Model
from runnel.models.recurrent.heads import FirstVector, TorchHead, score, vector_head, wide
from runnel.models.recurrent.model import TorchModel
from runnel.text.templates import OWN_PAIR, PAIR_TEMPLATES, Template
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import read_tokenizer

# poolings by their names in sentence-transformers
_MODES: dict[Pooling, str] = {"cls": "cls", "eos": "lasttoken", "mean": "mean"}
# The class of the code in the GTE-Qwen2 folders: a Qwen2 that obeys `is_causal` of its config, as
# the class in transformers does from version 5.2 on.
_GTE = "modeling_qwen.Qwen2Model"


class Scores(TorchHead):
    """The score of a pair from a cross-encoder's logits."""

    pooling = "cls"

    def forward(self, logits: Tensor) -> Tensor:
        """(n, 1 or 2) -> (n,)"""
        return score(wide(logits))


def is_transformer(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a folder has a transformer. Raise MissingDependency if deciding that needs the
    transformers library, which is not installed.
    """
    if "dim" in config:  # Mistral's format: Mamba-2
        return False
    kind = str(config.get("model_type", ""))
    # Known without the library: BERT's types are transformers, and other types that runnel knows
    # are not. Nor is a folder with neither a type nor the modules.json of sentence-transformers.
    if (
        kind in Encoder.model_types
        or kind in KNOWN_TYPES
        or not (kind or (folder / "modules.json").exists())
    ):
        return kind in Encoder.model_types
    # The library decides about any other type; without a type, there is a modules.json.
    library = require_library(f"{folder}, a {kind or 'sentence-transformers'!r} model,")
    return not kind or kind in library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES


def load_transformer(
    folder: Path,
    config: Mapping[str, Any],
    dtype: Any,
    device: str,
    source: str,
    *,
    pooling: Pooling | None = None,
    template: str | None = None,
    job: Job = "embed",
    prefix: str = "",
) -> TorchModel:
    """Load a transformer; arguments as for `load_model`.

    Args:
        source: the model's name in messages.
        prefix: "st": load it with sentence-transformers, even if runnel could; "st-code": also run
            the code that comes with the model.
    """
    # 1. A BERT-like embedder that needs no other library runs as an `Encoder`. `simple`: no folder
    # of sentence-transformers, or one with the transformer in the folder itself and then a pooling
    # that runnel computes, nothing more.
    own_code = prefix == "st-code"
    theirs = read_sentence_transformer(folder)  # None: another library wrote the folder
    pairs = _is_cross_encoder(folder, config)
    simple = theirs is None or (theirs.pooling is not None and not theirs.path)
    if is_bert(config) and simple and job == "embed" and not (pairs or prefix):
        backbone = load_backbone(folder, dtype, device)
        assert isinstance(backbone, Encoder)
        return read_encoder(folder, backbone, source, pooling)
    # 2. All others run as a `Library`: choose the pooling, and load them.
    require_library(f"{folder}, a {config.get('model_type', 'sentence-transformers')!r} model,")
    decoder = is_decoder(str(config.get("model_type")))
    _check_reading(folder, config, decoder=decoder, own_code=own_code)
    default: Pooling = "mean" if config.get("model_type") == "t5" else "eos" if decoder else "cls"
    check_pooling(
        pooling,
        str(config.get("model_type")),
        causal=decoder and config.get("is_causal") is not False,
    )
    mode = _MODES[pooling or (theirs and theirs.pooling) or default]
    # Whether the folder's own modules are used, its pooling among them: for a cross-encoder, and
    # for a sentence-transformers folder that embeds as its makers chose. If not, the transformer
    # alone is loaded, and pooled by `mode`.
    whole = pairs or (theirs is not None and pooling is None and job == "embed")
    library = open_library(
        folder,
        dtype,
        device,
        None if whole else mode,
        scores=pairs or job == "rerank",
        own_code=own_code,
    )
    # 3. The templates of texts and pairs: made of the special tokens that the tokenizer writes;
    # what runnel stored with the model wins, except over a pair template of the user's choice.
    place = folder / theirs.path if theirs else folder
    tokenizer = read_tokenizer(place)
    stored = getattr(library.model.transformers_model.config, TEMPLATES, {})
    text = text_template(place) if theirs is not None or decoder else _around_text(place, tokenizer)
    before = text.partition("{document}")[0]
    pair = pair_notation(
        template or ("rankmamba" if decoder else "pair"), place, tokenizer, before, decoder=decoder
    )
    if theirs is None and decoder and text.endswith("{document}"):
        text += "{end}"
    written = {"document": text, "rerank": pair} | {
        k: v for k, v in stored.items() if k == "document" or not template
    }
    if theirs is not None:
        warn(folder, theirs, "eos" if mode == "lasttoken" else None, written["document"])
    # 4. The heads. A `Library` gives every token of a text the one pooled vector of the text, so
    # `FirstVector` takes it from the first token.
    heads: dict[str, nn.Module] = {} if library.scores else {"embed": FirstVector()}
    if pairs:  # a new cross-encoder has no trained layer yet, so no head either
        heads["rerank"] = Scores()
    templates = {name: Template.parse(notation) for name, notation in written.items()}
    prompts = theirs.prompts if theirs else {}
    return TorchModel(library, tokenizer, nn.ModuleDict(heads), templates, prompts, source)


def read_encoder(
    folder: Path, backbone: Encoder, source: str, pooling: Pooling | None = None
) -> TorchModel:
    """Return the model of a BERT-like embedder, and set the longest text that its makers let it
    read.
    """
    theirs = read_sentence_transformer(folder)
    tokenizer = read_tokenizer(folder)
    text = _around_text(folder, tokenizer) if theirs is None else text_template(folder)
    pooled = pooling or (theirs and theirs.pooling) or "cls"
    if theirs is not None:
        backbone.shorten(theirs.max_tokens or backbone.config.max_positions)
        warn(folder, theirs, pooled, text)
    heads = nn.ModuleDict({"embed": vector_head(pooled)})
    # The template has the special tokens that the tokenizer writes; config files may name others.
    if around := re.fullmatch(r"\{token:(.+?)\}\{document\}\{token:(.+?)\}", text):
        tokenizer.begin_id, tokenizer.end_id = map(tokenizer.token_id, around.groups())
    prompts = (theirs.prompts if theirs else {}) or published_prompts(folder)
    templates = {"document": Template.parse(text)}
    return TorchModel(backbone, tokenizer, heads, templates, prompts, source)


def apply_choices(
    model: Model, folder: Path, pooling: Pooling | None, template: str | None
) -> None:
    """Replace the pooling and the pair template of a model by the user's choices; None: keep.

    For folders that runnel wrote, and for bare checkpoints; `load_transformer` has its own way.
    """
    if pooling is not None:
        check_pooling(pooling, model.backbone.title, causal=model.backbone.recurrent)
        model.heads["embed"] = vector_head(pooling)
    if template is not None:
        before = "" if model.tokenizer.begin_id is None else "{begin}"
        model.templates["rerank"] = Template.parse(
            pair_notation(template, folder, model.tokenizer, before)
        )


def pair_notation(
    name: str, folder: Path, tokenizer: Tokenizer, before: str, *, decoder: bool = True
) -> str:
    """Return the notation of a pair template.

    Args:
        name: one of `PAIR_TEMPLATES`.
        before: the special tokens before a decoder's texts, in template notation.
        decoder: the model reads from left to right, as recurrent ones do.

    Raises:
        InputError: the name is unknown, the tokenizer has no pair template, or the template does
            not fit the model.
    """
    expect_choice(name, PAIR_TEMPLATES, "the pair template")
    # for decoders (None: as the tokenizer writes pairs), and for others, after the begin marker
    # (`OWN_PAIR`: as the tokenizer writes pairs, if it does; None: the template does not fit them)
    one_way, both_ways = PAIR_TEMPLATES[name]
    own = pair_template(folder) if (folder / "tokenizer.json").exists() else None
    if decoder:
        notation = own if one_way is None else before + str(one_way)
    else:
        begin = "" if tokenizer.begin_id is None else "{begin}"  # T5 has none
        notation = own if own and both_ways == OWN_PAIR else both_ways and begin + both_ways
    if notation is None:
        raise InputError(
            f"the pair template {name!r} does not fit {folder}, or its tokenizer writes no pairs;"
            " use rankmamba"
        )
    return notation


def _is_cross_encoder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a folder has a layer that scores pairs, with one output, or with two (no,
    yes).
    """
    if (folder / "modules.json").exists():
        settings = read_model_json(folder / "config_sentence_transformers.json", default={})
        return settings.get("model_type") == "CrossEncoder"
    classifies = any(
        str(name).endswith("ForSequenceClassification")
        for name in config.get("architectures") or []
    )
    # A config without "id2label" has the library's default, two labels: "ab" is as long.
    return classifies and len(config.get("id2label") or "ab") <= 2


def _check_reading(
    folder: Path, config: Mapping[str, Any], *, decoder: bool, own_code: bool
) -> None:
    """Raise CheckpointError unless the library's own class reads models of this config as their
    authors do.
    """
    if own_code:
        return
    code = next(iter(code_classes(config)), None)
    both_ways = decoder and config.get("is_causal") is False
    problem = None
    positions = config.get("position_embedding_type") or "absolute"
    if code is not None and not (both_ways and code.rsplit("--", 1)[-1] == _GTE):
        problem = (
            f"auto_map names code, {code}, which may read a text differently from the transformers"
            " library. If you trust it, write st-code: before the name; if it only copies the"
            " library's class, remove auto_map"
        )
    elif positions != "absolute":
        problem = (
            f"position_embedding_type is {positions!r}; expected 'absolute', as the library"
            " computes; use another model"
        )
    elif decoder and not both_ways and (said := reads_both_ways(config)) is not None:
        problem = (
            f"{said}, so its authors read a text both ways, and the library reads it causally; "
            'add "is_causal": false to config.json to read both ways, true to read causally'
        )
    if problem:
        raise CheckpointError(f"{folder}/config.json: {problem}")


def _around_text(folder: Path, tokenizer: Tokenizer) -> str:
    """Return a text's template with the tokenizer's special tokens; encoders always get their
    markers.
    """
    text = text_template(folder)
    begin = "" if tokenizer.begin_id is None else "{begin}"
    return text if text != "{document}" else begin + text + "{end}"
