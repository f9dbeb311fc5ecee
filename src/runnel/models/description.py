"""The object "runnel" of a model folder's config.json, and the parts of a model that it names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.checks import expect_choice
from runnel.config import arguments, valid_config
from runnel.errors import CheckpointError
from runnel.models.head import Head
from runnel.text.sentences import Unit
from runnel.text.templates import Template
from runnel.text.tokenizers import read_tokenizer

VERSION = 1  # of the layout of a model folder


@dataclass(frozen=True)
class Markers:
    """The special tokens around a text."""

    begin: int | None
    end: int | None


@dataclass(frozen=True)
class Description:
    """The object "runnel" of config.json."""

    version: int
    backbone: dict[str, Any]  # "architecture" and "config"
    heads: dict[str, dict[str, Any]]
    templates: dict[str, dict[str, Any]]
    prompts: dict[str, str]
    markers: Markers
    unit: Unit

    @classmethod
    def read(cls, config: object, source: str) -> Description:
        """Return the description in a config.json; raise CheckpointError unless this version of
        runnel reads it.
        """
        version = config.get("version") if isinstance(config, Mapping) else None
        if version != VERSION:
            raise CheckpointError(
                f"{source} has model format {version!r}, this version of runnel reads {VERSION};"
                " upgrade runnel"
            )
        return cls(**arguments(cls, config, f"{source}: config.json"))

    def parts(self, folder: Path, heads: Any, source: str) -> dict[str, Any]:
        """Return the arguments of a `Model` other than the backbone; `heads` are those that were
        read.
        """
        jobs = {name: head for name, head in heads.items() if name in Head.jobs}
        needed = {
            "document" if name == "embed" or head.inputs == "vectors" else name
            for name, head in jobs.items()
        }
        if missing := sorted(needed - set(self.templates)):
            raise CheckpointError(
                f"{source}: config.json lacks the template {missing[0]!r}, which its heads need;"
                " save the model again"
            )
        with valid_config(source):
            tokenizer = read_tokenizer(folder, begin=self.markers.begin, end=self.markers.end)
            templates = {name: Template.from_dict(value) for name, value in self.templates.items()}
        card = folder / "README.md"
        return {
            "tokenizer": tokenizer,
            "heads": heads,
            "templates": templates,
            "prompts": self.prompts,
            "source": source,
            "card": card.read_text(encoding="utf-8", errors="replace") if card.exists() else "",
            "unit": self.unit,
        }


def head_options(
    kinds: Mapping[str, type[Head]],
    name: str,
    config: Mapping[str, Any],
    backbone: Any,
    source: str,
) -> tuple[type[Head], dict[str, Any]]:
    """Return the class of a head in config.json, one of `kinds`, and the arguments that make it."""
    options = dict(config)
    kind: Any = options.pop("kind", None)
    with valid_config(source):
        expect_choice(
            kind,
            sorted(key for key, head in kinds.items() if name in head.jobs),
            f"the kind of the head {name!r}",
        )
    given = {
        "vocab_size": backbone.vocab_size,
        "hidden_size": backbone.hidden_size,
        "state_shapes": backbone.state_shapes(),
    }
    names = inspect.signature(kinds[kind]).parameters
    taken = {key: value for key, value in given.items() if key in names}
    what = f"{source}: the head {name!r} of config.json"
    return kinds[kind], taken | arguments(kinds[kind], options, what, given=tuple(given))
