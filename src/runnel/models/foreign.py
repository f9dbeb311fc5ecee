"""What the files of other libraries say about how a model is used: special tokens, pooling, prompts, longest text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from runnel.errors import CheckpointError
from runnel.models.heads import Pooling

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
    """What a sentence-transformers folder says.

    Attributes:
        pooling: which hidden vectors; `mode` is its name in the file.
        prompts: by name.
        max_tokens: the longest text, special tokens included, that its authors let it read; None: not said.
    """

    pooling: Pooling
    mode: str
    prompts: dict[str, str]
    max_tokens: int | None


def read_sentence_transformer(folder: Path) -> SentenceTransformer | None:
    """What a sentence-transformers folder says; None for other folders.

    Raises:
        CheckpointError: a file is missing or damaged, or its modules compute what no model here does.
    """
    if not (folder / "modules.json").exists():
        return None
    modes: list[str] = []
    for module in _read_json(folder / "modules.json", expect=list)[1:]:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            modes += _pooling_modes(_read_json(folder / module["path"] / "config.json"), folder)
        elif kind != "Normalize":
            raise CheckpointError(
                f"{folder} has a module {module['type']!r} after pooling; only Pooling and Normalize are supported"
            )
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        found = " and ".join(map(repr, modes)) or "nothing"
        raise CheckpointError(f"{folder} pools by {found}; runnel pools by one of cls, lasttoken and mean")
    settings, transformer = folder / "config_sentence_transformers.json", folder / "sentence_bert_config.json"
    prompts = _read_json(settings).get("prompts", {}) if settings.exists() else {}
    limit = _read_json(transformer).get("max_seq_length") if transformer.exists() else None
    return SentenceTransformer(_POOLINGS[modes[0]], modes[0], {k: v for k, v in prompts.items() if v}, limit)


def _pooling_modes(config: dict[str, Any], folder: Path) -> list[str]:
    if config.get("include_prompt") is False:
        raise CheckpointError(f"{folder} leaves prompts out of pooling (include_prompt false), which no model here does")
    mode = config.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else list(mode)
    return [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]


def text_template(folder: Path) -> str:
    """The special tokens that a folder's tokenizer puts around a text, in template notation: "{token:[CLS]}{document}..."."""
    return "".join(_parts(_tokenizer(folder).encode("a"), ["{document}"]))


def pair_template(folder: Path) -> str | None:
    """The same of a query and a document; None where nothing is put between them."""
    parts = _parts(_tokenizer(folder).encode("a", "a"), ["{query}", "{document}"])
    return None if "{query}{document}" in "".join(parts) else "".join(parts)


def _tokenizer(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} cannot be read ({error}); expected a file of the tokenizers library") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _parts(encoding: tokenizers.Encoding, fields: list[str]) -> list[str]:
    parts: list[str] = []
    for token, text in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        part = "{token:" + token + "}" if text is None else fields[text]
        if text is None or part not in parts:  # a text may be several tokens
            parts.append(part)
    return parts


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
