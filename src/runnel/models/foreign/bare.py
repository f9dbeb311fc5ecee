"""Tokenizer, templates, heads and prompts for a recurrent checkpoint that runnel did not write.

Every such checkpoint gets the papers' templates (docs/papers.md) and a head that embeds a text by
its end marker. A single-pass scanner (paper E: it reads the query and then the document, and scores
sentences as they end) also has its sentence head, and the unit "clauses": paper E's units are
clauses, joined until they have 20 tokens.
EmbeddingRWKV has templates and heads of its own (`embedding_rwkv.py`), and so has a
sentence-transformers folder, which must pool the last token.
"""

import logging
from pathlib import Path

from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.finding import reason_of
from runnel.backbones.checkpoint.load import Checkpoint
from runnel.errors import CheckpointError
from runnel.models.foreign import embedding_rwkv
from runnel.models.foreign.settings import read_sentence_transformer, text_template, warn
from runnel.models.recurrent.heads import EndScore, EndVector
from runnel.models.recurrent.model import TorchModel
from runnel.redaction import showable
from runnel.text.library import LibraryTokenizer
from runnel.text.templates import DOCUMENT, DOCUMENT_THEN_QUERY, QUERY_LINE_THEN_DOCUMENT, Template
from runnel.text.tokenizer import LIBRARY_FILE, WORLD_FILE, Tokenizer
from runnel.text.tokenizers import read_tokenizer, tokenizer_file

log = logging.getLogger("runnel")

_NEOX, _CODESTRAL = "EleutherAI/gpt-neox-20b", "mistralai/Mamba-Codestral-7B-v0.1"
# rows of an embedding table for GPT-NeoX's 50277 tokens, padded to a multiple of 8, 16, 64 or 128
_NEOX_ROWS = range(50277, 50305)
_WORLD_ROWS, _MISTRAL_ROWS = 65536, 32768
# Tokens that identify a vocabulary: no two published vocabularies share them. Config files do not:
# they often name other vocabularies than the one of the training.
_VOCABULARIES = {
    "RWKV World": {"<|endoftext|>": 0, "\n\n": 261, "\r\n": 263},
    "GPT-NeoX": {"<|endoftext|>": 0, "<|padding|>": 1, "!": 2},
    "Mistral v3": {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3},
}
# The templates of the papers (docs/papers.md): of a text from A, of a pair from B, of a query and a
# document whose sentences are scored from E.
_TEMPLATES = {
    "document": DOCUMENT,
    "rerank": DOCUMENT_THEN_QUERY,
    "sentences": QUERY_LINE_THEN_DOCUMENT,
}


def read_bare(folder: Path, checkpoint: Checkpoint, source: str) -> TorchModel:
    """Return the model of a folder that runnel did not write; `source`: its name in messages."""
    if any(name.startswith(embedding_rwkv.HEADS) for name in checkpoint.heads):
        tokenizer = load_tokenizer(folder, checkpoint.backbone)
        tokenizer.begin_id = None  # a text has only an end marker: see embedding_rwkv.py
        tokenizer.end_id = checkpoint.backbone.vocab_size - 1
        return TorchModel(
            checkpoint.backbone,
            tokenizer,
            embedding_rwkv.read_heads(checkpoint),
            embedding_rwkv.TEMPLATES,
            embedding_rwkv.PROMPTS,
            source,
        )
    heads = nn.ModuleDict({"embed": EndVector()})
    if checkpoint.heads:  # only a single-pass scanner has some
        linear = {name: tensor.float() for name, tensor in checkpoint.heads.items()}
        head = EndScore(
            checkpoint.backbone.hidden_size, outputs=len(linear["weight"]), bias="bias" in linear
        )
        head.linear.load_state_dict(linear)
        heads["sentences"] = head
    tokenizer = load_tokenizer(folder, checkpoint.backbone)
    templates = bare_templates(tokenizer)
    prompts: dict[str, str] = {}
    theirs = read_sentence_transformer(folder)
    if theirs is not None:
        if theirs.pooling != "eos":
            raise CheckpointError(
                f"{folder}: it pools by {theirs.after}; recurrent embedders must pool the last"
                " token (pooling_mode lasttoken)"
            )
        text = text_template(folder)
        prompts = theirs.prompts
        warn(folder, theirs, theirs.pooling, text)
        templates["document"] = Template.parse(text)
    return TorchModel(
        checkpoint.backbone,
        tokenizer,
        heads,
        templates,
        prompts,
        source,
        unit="clauses" if checkpoint.heads else "sentence",
    )


def load_tokenizer(folder: Path, backbone: Backbone) -> Tokenizer:
    """Return the tokenizer of a bare checkpoint, with its `markers`."""
    tokenizer = (
        read_tokenizer(folder) if tokenizer_file(folder) else _missing_tokenizer(folder, backbone)
    )
    tokenizer.begin_id, tokenizer.end_id = markers(type(backbone), tokenizer)
    return tokenizer


def load_neox_tokenizer(folder: Path) -> LibraryTokenizer:
    """Return the tokenizer of GPT-NeoX: from the folder, if it has one, else from the hub or its
    cache.
    """
    own = folder / LIBRARY_FILE
    return LibraryTokenizer.read(own if own.is_file() else _fetch(_NEOX, LIBRARY_FILE, folder))


def markers(family: type[Backbone], tokenizer: Tokenizer) -> tuple[int | None, int | None]:
    """Return the begin and end ids of a family's bare checkpoints: the published ids
    (`Backbone.markers`, by vocabulary), or the ids in the tokenizer's own files, without the begin
    id if the family reads none (`Backbone.begins`).
    """
    own = (tokenizer.begin_id if family.begins else None, tokenizer.end_id)
    return family.markers.get(vocabulary_name(tokenizer) or "", own)


def bare_templates(tokenizer: Tokenizer) -> dict[str, Template]:
    """Return the papers' templates, with the begin marker if the tokenizer has one."""
    begin = "" if tokenizer.begin_id is None else "{begin}"
    return {name: Template.parse(begin + str(template)) for name, template in _TEMPLATES.items()}


def _missing_tokenizer(folder: Path, backbone: Backbone) -> Tokenizer:
    """Fetch the tokenizer of a folder that has none, if it is a known one; otherwise raise."""
    rows, published = backbone.vocab_size, backbone.markers
    if rows in _NEOX_ROWS and "GPT-NeoX" in published:
        log.info("%s has no tokenizer; taking %s of %s", folder, LIBRARY_FILE, _NEOX)
        return load_neox_tokenizer(folder)
    if rows == _WORLD_ROWS and "RWKV World" in published:
        wanted = (
            f"and needs {WORLD_FILE}, which RWKV's authors publish separately from the weights: put"
            " it into the folder. It is in the folder tokenizer of their repository"
            " BlinkDL/ChatRWKV and in the Python packages rwkv and pyrwkv-tokenizer"
        )
    elif rows == _MISTRAL_ROWS and "Mistral v3" in published:
        wanted = f"and needs {LIBRARY_FILE} of {_CODESTRAL} on the hub: put it into the folder"
    else:
        return read_tokenizer(folder)  # raises
    raise CheckpointError(f"{folder} has no tokenizer: {wanted}")


def _fetch(repository: str, file: str, folder: Path) -> Path:
    """Return one file of a hub repository, from the cache if possible."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    try:
        return Path(hf_hub_download(repository, file))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} has no tokenizer: it needs {file} of {repository}, which is not in the hub"
            f" cache {constants.HF_HUB_CACHE} and could not be fetched from the hub"
            f" ({reason_of(error)}); put that file into the folder"
        ) from showable(error)


def vocabulary_name(tokenizer: Tokenizer) -> str | None:
    """Return the name of a published vocabulary, recognized by a few of its tokens; None for any
    other.
    """
    return next(
        (
            name
            for name, tokens in _VOCABULARIES.items()
            if tokens.items() <= tokenizer.vocabulary.items()
        ),
        None,
    )
