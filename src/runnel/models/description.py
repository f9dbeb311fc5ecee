"""The object "runnel" of a model folder's config.json, and the parts of a model that it names.

A model is a backbone, which turns token ids into hidden vectors, with heads, which make vectors or
scores of them, a tokenizer and templates. The object says which; the weights and the tokenizer are
in other files of the folder. Shortened, with heads for embeddings and for reranking:

    "runnel": {
        "version": 1,
        "backbone": {"architecture": "mamba2", "config": {"hidden_size": 384, ...}},
        "heads": {
            "features": {"kind": "token_features"},
            "embed": {"kind": "mean_vector", "size": null},
            "rerank": {"kind": "match_score", "lexical": 1, "match_size": 128}
        },
        "templates": {
            "document": {"template": "{token:[CLS]}{document}{token:[SEP]}"},
            "rerank": {"template": "{token:[CLS]}{document}{token:[SEP]}{query}{token:[SEP]}"}
        },
        "prompts": {"query": "query: "},
        "markers": {"begin": 101, "end": 102},
        "unit": "sentence"
    }

A head's name is its job in the model: "embed", "sentences" and "rerank" serve a user; the others,
such as "features", serve these heads or text generation. A head's kind is the class that computes
it (`head_kind` in `models/head.py`), such as "match_score" for `MatchScore`, which names in `jobs`
what it can do. The other keys of a head are arguments of its class.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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
    """The ids of the special tokens that begin and end a text, {begin} and {end} of a template;
    None: no token.
    """

    begin: int | None
    end: int | None


@dataclass(frozen=True)
class Description:
    """The object "runnel" of config.json; see the example above."""

    version: int  # `VERSION`
    backbone: dict[str, Any]  # "architecture", a family of backbones, and "config", its sizes
    heads: dict[str, dict[str, Any]]  # name -> "kind" and the arguments of its class
    # name -> "template": how a text is put together for a head, in the notation of `Template`
    templates: dict[str, dict[str, Any]]
    prompts: dict[str, str]  # name -> words to put before a text
    markers: Markers
    unit: Unit  # what a head "sentences" scores: sentences, clauses or paragraphs
    # by the name of another model's folder beside this one: the tensors of that model, which this
    # one has too and no copy of
    shared: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, config: object, source: str) -> Self:
        """Return the description in a config.json; raise CheckpointError unless this version of
        runnel reads it.
        """
        version = config.get("version") if isinstance(config, Mapping) else None
        if version != VERSION:
            raise CheckpointError(
                f"{source} has model format {version!r}, this version of runnel reads {VERSION};"
                " upgrade runnel"
            )
        return cls(**arguments(cls, config, f"{source}: config.json", defaults=True))

    def model_arguments(self, folder: Path, heads: Any, source: str) -> dict[str, Any]:
        """Return the keyword arguments of a `Model` other than the backbone, read from its folder.

        Args:
            heads: name -> head, with its weights.
            source: what errors call the model.

        Raises:
            CheckpointError: a template that a head needs is missing, or a template or the tokenizer
                is not valid.
        """
        # A head that embeds, or scores vectors that were stored, reads each text by itself, by the
        # template "document". The others for users read a query and a document in one text, each by
        # the template of its own name. `Head.jobs` has the names of the heads for users.
        for_users = {name: head for name, head in heads.items() if name in Head.jobs}
        needed = {
            "document" if name == "embed" or head.inputs == "vectors" else name
            for name, head in for_users.items()
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
    """Return the class of a head in config.json and the arguments that make the head.

    Args:
        kinds: kind -> class, of the classes to choose from.
        name, config: of the head: for example "rerank" and {"kind": "match_score", "lexical": 1}.

    Raises:
        CheckpointError: no class of this kind can do the job `name`, or its arguments are wrong.
    """
    options = dict(config)
    kind: Any = options.pop("kind", None)
    with valid_config(source):
        expect_choice(
            kind,
            sorted(key for key, head in kinds.items() if name in head.jobs),
            f"the kind of the head {name!r}",
        )
    # A class takes the sizes of the backbone that its __init__ names; config.json has none of them,
    # but all its other arguments.
    names = inspect.signature(kinds[kind]).parameters
    taken = {
        size: getattr(backbone, size) for size in ("vocab_size", "hidden_size") if size in names
    }
    if "state_shapes" in names:
        taken["state_shapes"] = backbone.state_shapes()
    return kinds[kind], taken | arguments(
        kinds[kind],
        options,
        f"{source}: the head {name!r} of config.json",
        given=tuple(taken),
        defaults=True,
    )
