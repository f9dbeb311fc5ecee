"""Settings in other libraries' files that say how a model is used: special tokens, pooling,
prompts, longest text. `write_sentence_transformer` writes such files for runnel's own models, and
`save_library` saves a model that sentence-transformers runs.

A sentence-transformers folder is read as that library reads it (tests/models/test_foreign.py
compares the vectors) or refused with a reason. There is one exception: "add_eos_token" in
tokenizer_config.json adds the end marker, as in the transformers library up to version 4. From
version 5 on, that library ignores the setting if the folder has a tokenizer.json.
"""

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers

from runnel.backbones.library import Library
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError
from runnel.files import write_json
from runnel.models.head import Pooling
from runnel.models.model import Job
from runnel.text.templates import Template
from runnel.text.tokenizer import LIBRARY_FILE, Tokenizer

log = logging.getLogger("runnel")
# By job, how sentence-transformers loads a saved folder: the class of its model, and the class in
# `runnel.integrations` of the folder's module.
JOBS: dict[Job, tuple[str, str]] = {
    "embed": ("SentenceTransformer", "EmbedderModule"),
    "rerank": ("CrossEncoder", "RerankerModule"),
}
TEMPLATES = "runnel_templates"  # in the config.json of models that `save_library` wrote

# Classes of the transformers library, slow or fast, that add the end marker for "add_eos_token"; so
# do custom classes.
_ADD_END = (
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "CohereTokenizer",
    "GPTNeoXTokenizer",
)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the first one in the folder is used
# Prompts of models whose folders lack them, from the pages of these models. "document" is the
# prompt of passages.
_PUBLISHED_PROMPTS = {
    r"(multilingual-)?e5-(small|base|large)(-v2)?": {"query": "query: ", "document": "passage: "},
    r"bge-(small|base|large)-en(-v1\.5)?": {
        "query": "Represent this sentence for searching relevant passages: "
    },
}
_UNLIMITED = 10**9  # a greater limit means none: transformers writes 1e30

_POOLINGS: dict[str, Pooling] = {
    "cls": "cls",
    "lasttoken": "eos",
    "mean": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "eos",
    "pooling_mode_mean_tokens": "mean",
}


@dataclass(frozen=True)
class SentenceTransformer:
    """Settings of a sentence-transformers folder."""

    # None: a pooling that runnel does not compute, or other modules follow the pooling
    pooling: Pooling | None
    after: str  # the modules after the Transformer, in words, for messages
    prompts: dict[str, str]  # by name
    # the name of the prompt that sentence-transformers puts before texts that are neither query nor
    # document
    default_prompt: str | None
    # the longest text that it reads, special tokens included; None: no limit given
    max_tokens: int | None
    path: str = ""  # the folder of the first module, within the model's folder


def write_sentence_transformer(folder: Path, job: Job, prompts: dict[str, str]) -> None:
    """Write the files from which sentence-transformers loads a folder saved by runnel."""
    kind, module = JOBS[job]
    settings: dict[str, Any] = {"model_type": kind, "prompts": {}, "default_prompt_name": None}
    if job == "embed":
        settings |= {"prompts": prompts, "similarity_fn_name": "cosine"}
    else:  # a score is a logit; by default the library would apply a sigmoid
        settings["activation_fn"] = "torch.nn.modules.linear.Identity"
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": f"runnel.integrations.sentence_transformers.{module}",
        }
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "config_sentence_transformers.json", settings)


def save_library(
    backbone: Library,
    folder: Path,
    weights: str,
    tokenizer: Tokenizer,
    templates: Mapping[str, Template],
    prompts: Mapping[str, str],
) -> None:
    """Save a library model as sentence-transformers does, with its templates in config.json and the
    tokenizer as it was read.
    """
    if weights == "int8":
        raise InputError(
            f"{backbone.title} is read by sentence-transformers, so its weights are not saved in 8"
            " bits"
        )
    backbone.model.prompts = dict(prompts)
    setattr(
        backbone.model.transformers_model.config,
        TEMPLATES,
        {name: str(template) for name, template in templates.items()},
    )
    backbone.model.save_pretrained(str(folder), create_model_card=False)
    with TemporaryDirectory() as own:
        tokenizer.save(own)
        shutil.copy(Path(own) / LIBRARY_FILE, folder)


def read_sentence_transformer(folder: Path) -> SentenceTransformer | None:
    """Read the settings of a sentence-transformers folder; return None for other folders.

    Raises:
        CheckpointError: a file is missing or damaged, or prompts are left out of pooling.
    """
    if not (folder / "modules.json").exists():
        return None
    first, *rest = _modules(folder)
    modes: list[str] = []
    for module in rest:
        if _theirs(module, "Pooling"):
            config = read_model_json(folder / module["path"] / "config.json")
            if config.get("include_prompt") is False:
                raise CheckpointError(
                    f"{folder} leaves prompts out of pooling (include_prompt false), which is not"
                    " supported"
                )
            # older files have a flag for each mode, newer ones "pooling_mode": a name or a list
            old = [
                name
                for name, value in config.items()
                if name.startswith("pooling_mode_") and value is True
            ]
            new = config.get("pooling_mode") or old
            modes += [new] if isinstance(new, str) else new
    others = [
        module["type"]
        for module in rest
        if not (_theirs(module, "Pooling") or _theirs(module, "Normalize"))
    ]
    if not _theirs(first, "Transformer"):
        others.append(first["type"])
    pooling = _POOLINGS.get(modes[0]) if len(modes) == 1 and not others else None
    after = " and ".join(map(repr, [*modes, *others])) or "nothing"
    return SentenceTransformer(
        pooling, after, *_prompts(folder), _longest(folder / first["path"]), first["path"]
    )


def _modules(folder: Path) -> list[dict[str, str]]:
    path = folder / "modules.json"
    modules: list[Any] = read_model_json(path, expect=list)
    for module in modules or [None]:  # an empty list fails as an entry None does
        if not isinstance(module, dict) or not all(
            isinstance(module.get(key), str) for key in ("type", "path")
        ):
            raise CheckpointError(
                f'{path} has an entry {module!r}; expected one at least, each with a "type" and a'
                ' "path"'
            )
    return modules


def _theirs(module: dict[str, str], kind: str) -> bool:
    """Return whether a module is this class of sentence-transformers, whose path in the package
    changed with version 5.
    """
    package, *_, name = module["type"].split(".")
    return package == "sentence_transformers" and name == kind


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """Read the prompts by name, with the document prompt as "document", and the name of the default
    prompt.
    """
    settings = read_model_json(folder / "config_sentence_transformers.json", default={})
    prompts = {name: text for name, text in (settings.get("prompts") or {}).items() if text}
    if document := next((prompts[name] for name in _DOCUMENT_PROMPTS if name in prompts), None):
        prompts["document"] = document
    default = settings.get("default_prompt_name")
    return prompts, default if default in prompts else None


def published_prompts(folder: Path) -> dict[str, str]:
    """Return the prompts of a published model that is known by the name of its folder, of its hub
    id, or in its config.json.
    """
    # the hub's cache has a model in the folder models--OWNER--NAME
    stored = re.search(r"models--[^/]*?--([^/]+)", folder.absolute().as_posix())
    named = str(
        read_model_json(folder / "config.json", default={}).get("_name_or_path", "")
    ).rstrip("/")
    names = {folder.absolute().name, stored[1] if stored else "", named.rpartition("/")[2]}
    return next(
        (
            dict(p)
            for name, p in _PUBLISHED_PROMPTS.items()
            if any(re.fullmatch(name, one) for one in names)
        ),
        {},
    )


def _longest(folder: Path) -> int | None:
    """Read the length in tokens of the longest text; from version 6 on the limit is in the
    tokenizer's config.
    """
    settings = read_model_json(folder / "sentence_bert_config.json", default={})
    if settings.get("do_lower_case") and (folder / "tokenizer.json").exists():
        upper, lower = (encoding.ids for encoding in _tokenizer(folder).encode_batch(["A", "a"]))
        if upper != lower:
            raise CheckpointError(
                f"{folder} lowercases texts (do_lower_case) and its tokenizer does not; add a"
                " Lowercase normalizer to its tokenizer.json"
            )
    tokenizer = read_model_json(folder / "tokenizer_config.json", default={})
    limit = settings.get("max_seq_length") or tokenizer.get("model_max_length")
    return limit if limit and limit < _UNLIMITED else None


def text_template(folder: Path) -> str:
    """Return a template with the special tokens of the folder's tokenizer:
    "{token:[CLS]}{document}{token:[SEP]}".

    Without a tokenizer.json no special tokens are assumed.
    """
    if not (folder / "tokenizer.json").exists():
        return "{document}"
    text = "".join(_parts(_tokenizer(folder).encode("a"), ["{document}"]))
    config = read_model_json(folder / "tokenizer_config.json", default={})
    adds = str(config.get("tokenizer_class")).removesuffix("Fast") in _ADD_END or bool(
        config.get("auto_map")
    )
    end = config.get("eos_token")
    if adds and config.get("add_eos_token") is True and end and text.endswith("{document}"):
        text += "{token:" + (end["content"] if isinstance(end, dict) else end) + "}"
    return text


def warn(folder: Path, theirs: SentenceTransformer, pooling: Pooling | None, text: str) -> None:
    """Warn about a missing end marker and an unused default prompt. `text` is the template of a
    text.
    """
    if pooling == "eos" and text.endswith("{document}"):
        log.warning(
            "%s pools the last token and its tokenizer adds no end marker: the vector of a text is"
            " taken at its last word, as in sentence-transformers",
            folder,
        )
    if (name := theirs.default_prompt) is not None:
        log.warning(
            "%s: encode() adds no prompt; sentence-transformers adds %r: pass prompt=%r",
            folder,
            theirs.prompts[name],
            name,
        )


def pair_template(folder: Path) -> str | None:
    """Return a template of a query and a document with the special tokens of the folder's
    tokenizer; None if the tokenizer puts nothing between the two.
    """
    parts = _parts(_tokenizer(folder).encode("a", "a"), ["{query}", "{document}"])
    return None if "{query}{document}" in "".join(parts) else "".join(parts)


def _tokenizer(folder: Path) -> tokenizers.Tokenizer:
    kind = tokenizers.Tokenizer
    tokenizer: tokenizers.Tokenizer = read_model_json(
        folder / "tokenizer.json", expect=kind, parse=kind.from_str
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _parts(encoding: tokenizers.Encoding, fields: list[str]) -> list[str]:
    """Return what a tokenizer wrote as parts of a template: special tokens, which belong to no text
    (None), and for each text, by its number, one of the `fields`.
    """
    pieces: list[str] = []
    for token, text in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        part = "{token:" + token + "}" if text is None else fields[text]
        if text is None or part not in pieces:  # a text may be several tokens
            pieces.append(part)
    return pieces
