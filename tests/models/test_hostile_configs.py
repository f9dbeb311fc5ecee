"""Model folders with a damaged or hostile config.json: one CheckpointError each, at once, and without memory for its numbers."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import tiny_model
from safetensors.torch import load_file, save_file

from runnel.errors import CheckpointError
from runnel.models.base import load_model
from runnel.models.describe import describe_model

Keys = tuple[str, ...]
SIZES = ("vocab_size", "hidden_size", "num_layers", "state_size", "head_size", "groups", "conv_width", "expand")
BACKBONE = ("backbone", "config")
ABSENT = object()

# Where in the object "runnel", and what is put there.
CHANGES: list[tuple[Keys, Any]] = [
    *((( *BACKBONE, name), value) for name in SIZES for value in (10**9, 2**63, 2.5)),
    *((( *BACKBONE, name), value) for name in ("num_layers", "expand") for value in (10**6, -1, 0, True, "2", None, [2], {})),
    *((( *BACKBONE, name), value) for name in ("norm_eps", "dt_min", "dt_max") for value in ("x", [], -1, float("nan"), 2**63)),
    ((*BACKBONE, "norm_eps"), float("inf")),
    ((*BACKBONE, "conv_bias"), 1),
    ((*BACKBONE, "extra"), 1),
    ((*BACKBONE, "expand"), ABSENT),
    *(((name,), value) for name in ("backbone", "heads", "templates", "markers") for value in (ABSENT, None, [], 1, "x", {})),
    *((("prompts",), value) for value in (ABSENT, None, ["query: "], {"query": 1}, {"query": None})),
    *((("version",), value) for value in (ABSENT, None, "1", 99, [1])),
    (("extra",), 1),
    (("unit",), ["sentence"]),
    *((("backbone", "architecture"), value) for value in (ABSENT, None, "mamba9", [], {})),
    (("heads", "rerank"), None),
    (("heads", "rerank"), {}),
    (("heads", "rerank"), ["match_score"]),
    (("heads", "rerank", "kind"), "mystery"),
    (("heads", "rerank", "kind"), ["match_score"]),
    (("heads", "rerank", "kind"), "token_features"),
    (("heads", "rerank", "match_size"), 10**12),
    (("heads", "rerank", "match_size"), 2 * 10**9),
    (("heads", "rerank", "match_size"), 9),
    (("heads", "rerank", "match_size"), 8.0),
    (("heads", "rerank", "lexical"), ABSENT),
    (("heads", "rerank", "hidden_size"), 32),
    (("heads", "rerank", "extra"), 1),
    (("heads", "embed", "size"), 10**9),
    (("heads", "embed", "size"), -1),
    (("heads", "features", "kind"), "end_score"),
    (("heads", "a.b"), {"kind": "end_score"}),
    (("heads", "other"), {"kind": "end_score"}),
    (("templates", "rerank"), ABSENT),
    (("templates", "rerank"), None),
    (("templates", "rerank", "template"), 1),
    (("templates", "rerank", "template"), "{nothing}"),
    (("templates", "rerank", "template"), "{"),
    (("templates", "document", "max_tokens"), "many"),
    *((("markers", name), value) for name in ("begin", "end") for value in (ABSENT, 10**9, -1, "[CLS]", 2.0, [])),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "model")
    load_model(folder / "model")  # imports are not what the tests measure
    return folder / "model"


def put(description: dict[str, Any], path: Keys, value: Any) -> None:
    for name in path[:-1]:
        description = description[name]
    if value is ABSENT:
        del description[path[-1]]
    else:
        description[path[-1]] = value


def refused(read: Callable[[str], object], folder: Path) -> str:
    """The message; it comes at once, and no memory is taken for the numbers in the config."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read(str(folder))
    assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"
    assert len(str(caught.value)) < 900
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"), CHANGES, ids=lambda part: ".".join(part) if isinstance(part, tuple) else repr(part)[:20]
)
@pytest.mark.parametrize("read", [load_model, describe_model])
def test_a_hostile_config_is_refused(folder: Path, path: Keys, value: Any, read: Callable[[str], object]) -> None:
    file = folder / "config.json"
    whole = file.read_text()
    config = json.loads(whole)
    put(config["runnel"], path, value)
    try:
        file.write_text(json.dumps(config))
        assert str(folder) in refused(read, folder)
    finally:
        file.write_text(whole)


@pytest.mark.parametrize("description", [None, [], 1, "x", {}])
@pytest.mark.parametrize("read", [load_model, describe_model])
def test_a_config_without_a_description_is_refused(folder: Path, description: Any, read: Callable[[str], object]) -> None:
    file = folder / "config.json"
    whole = file.read_text()
    try:
        file.write_text(json.dumps({"runnel": description}))
        assert 'config.json lacks "backbone" with an architecture and a config; save the model again' in refused(read, folder)
    finally:
        file.write_text(whole)


def test_the_folder_itself_is_read(folder: Path) -> None:
    assert load_model(folder).heads.keys() == {"features", "embed", "rerank", "sentences"}
    assert describe_model(str(folder))["heads"].keys() == {"features", "embed", "rerank", "sentences"}


def test_messages_name_the_value_and_what_was_expected(folder: Path) -> None:
    file = folder / "config.json"
    whole = file.read_text()

    def message(path: Keys, value: Any) -> str:
        config = json.loads(whole)
        put(config["runnel"], path, value)
        file.write_text(json.dumps(config))
        return refused(load_model, folder)

    try:
        assert "its config says 1000000000 layers, the weights have 2" in message((*BACKBONE, "num_layers"), 10**9)
        assert "its config says expand is 1,000,000,000, but no tensor has a dimension above 164" in message(
            (*BACKBONE, "expand"), 10**9
        )
        assert "the config: expand is 2.5; expected a whole number from 0 to 2,147,483,647" in message((*BACKBONE, "expand"), 2.5)
        assert "config.json: prompts is ['a']; expected an object" in message(("prompts",), ["a"])
        assert "config.json lacks the template 'rerank', which its heads need" in message(("templates", "rerank"), ABSENT)
        assert "head tensor 'rerank.match.weight' has shape (8, 32); config.json expects (9, 32)" in message(
            ("heads", "rerank", "match_size"), 9
        )
        assert (
            "the head 'rerank' of config.json needs exactly ['lexical', 'match_size']; unknown: ['extra'], missing: []"
            in message(("heads", "rerank", "extra"), 1)
        )
    finally:
        file.write_text(whole)


@pytest.mark.parametrize("key", ["expand", "conv_kernel", "num_hidden_layers", "hidden_size", "state_size"])
@pytest.mark.parametrize("value", [10**9, 10**15])
def test_a_published_format_with_hostile_sizes_is_refused(tmp_path: Path, key: str, value: int) -> None:
    backbone = tiny_model(tmp_path / "tokenizer").backbone
    config = {
        "model_type": "mamba2",
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 16,
        "head_dim": 16,
    }
    config |= {"num_heads": 4, "n_groups": 1}
    save_file({f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps(config | {key: value, "num_heads": 4 if key not in ("expand", "hidden_size") else value * 4})
    )
    refused(load_model, tmp_path)


def test_one_layer_with_a_high_number_is_one_layer(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.999998.norm.weight"] = torch.ones(32)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["runnel"]["backbone"]["config"]["num_layers"] = 999_999
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "its config says 999999 layers, the weights have 3" in refused(load_model, tmp_path)


@pytest.mark.parametrize("number", [2**24, 2**31, 2**32 - 1, 2**32, -1, 1.5, None, "5"])
@pytest.mark.parametrize("place", ["vocab", "added_tokens"])
def test_a_tokenizer_with_hostile_ids_is_refused_or_harmless(folder: Path, number: Any, place: str) -> None:
    file = folder / "tokenizer.json"
    whole = file.read_text(encoding="utf-8")
    spec = json.loads(whole)
    if place == "vocab":
        spec["model"]["vocab"]["river"] = number
    else:
        spec["added_tokens"][0]["id"] = number
    try:
        file.write_text(json.dumps(spec))
        if place == "added_tokens" and type(number) is int and 0 <= number < 2**32:  # the library goes by the vocabulary's ids
            assert load_model(folder).tokenizer.encode("river").ids.max() < 128
            return
        refused(load_model, folder)
        refused(describe_model, folder)
    finally:
        file.write_text(whole, encoding="utf-8")
