"""Model folders with a damaged or hostile config.json: one CheckpointError each, at once, and without memory for its numbers."""

import json
import resource
import shutil
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
NO_OBJECTS = (None, [], 1, "x", {})
ABSENT = object()

# Where in the object "runnel", and what is put there.
CHANGES: list[tuple[Keys, Any]] = [
    *(((), value) for value in NO_OBJECTS),
    *((( *BACKBONE, name), value) for name in SIZES for value in (10**9, 2**63, 2.5)),
    *((( *BACKBONE, name), value) for name in ("num_layers", "expand") for value in (10**6, -1, 0, True, "2", None, [2], {})),
    *((( *BACKBONE, name), value) for name in ("norm_eps", "dt_min", "dt_max") for value in ("x", [], -1, float("nan"), 2**63)),
    ((*BACKBONE, "norm_eps"), float("inf")),
    ((*BACKBONE, "conv_bias"), 1),
    ((*BACKBONE, "extra"), 1),
    ((*BACKBONE, "expand"), ABSENT),
    *(((name,), value) for name in ("backbone", "heads", "templates", "markers") for value in (ABSENT, *NO_OBJECTS)),
    *((("prompts",), value) for value in (ABSENT, None, ["query: "], {"query": 1}, {"query": None})),
    *((("version",), value) for value in (ABSENT, None, "1", 99, [1])),
    (("extra",), 1),
    *((("unit",), value) for value in ("page", ["sentence"])),
    *((("backbone", "architecture"), value) for value in (ABSENT, None, "mamba9", [], {})),
    *((("heads", "rerank"), value) for value in (ABSENT, None, {}, ["match_score"])),
    *((("heads", "rerank", "kind"), value) for value in ("mystery", ["match_score"], "token_features")),
    *((("heads", "rerank", "match_size"), value) for value in (10**12, 2 * 10**9, 9, 8.0)),
    (("heads", "rerank", "lexical"), ABSENT),
    (("heads", "rerank", "hidden_size"), 32),
    (("heads", "rerank", "extra"), 1),
    *((("heads", "embed", "size"), value) for value in (10**9, -1)),
    (("heads", "features", "kind"), "end_score"),
    *((("heads", name), {"kind": "end_score"}) for name in ("a.b", "other")),
    *((("templates", "rerank"), value) for value in (ABSENT, None)),
    *((("templates", "rerank", "template"), value) for value in (1, "{nothing}", "{")),
    (("templates", "document", "max_tokens"), "many"),
    *((("markers", name), value) for name in ("begin", "end") for value in (ABSENT, 10**9, -1, "[CLS]", 2.0, [])),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "model")
    load_model(folder / "model")  # imports are not what the tests measure
    return folder / "model"


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "model")


def refused(read: Callable[[str], object], folder: Path) -> str:
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
def test_a_hostile_config_is_refused(folder: Path, path: Keys, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    at, path = config, ("runnel", *path)
    for name in path[:-1]:
        at = at[name]
    at.pop(path[-1]) if value is ABSENT else at.update({path[-1]: value})
    (folder / "config.json").write_text(json.dumps(config))
    for read in (load_model, describe_model):
        assert str(folder) in refused(read, folder)


@pytest.mark.parametrize("key", ["expand", "conv_kernel", "num_hidden_layers", "hidden_size", "state_size"])
def test_a_published_format_with_hostile_sizes_is_refused(tmp_path: Path, key: str) -> None:
    backbone = tiny_model(tmp_path / "tokenizer").backbone
    save_file({f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}, tmp_path / "model.safetensors")
    config = {"model_type": "mamba2", "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 16}
    config |= {"head_dim": 16, "n_groups": 1}
    for value in (10**9, 10**15):
        heads = value * 4 if key in ("expand", "hidden_size") else 4
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value, "num_heads": heads}))
        refused(load_model, tmp_path)


def test_one_layer_with_a_high_number_is_one_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.999998.norm.weight"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["runnel"]["backbone"]["config"]["num_layers"] = 999_999
    (folder / "config.json").write_text(json.dumps(config))
    assert "num_layers is 999999 in its config, in the weights it is 3" in refused(load_model, folder)


@pytest.mark.parametrize("number", [2**24, 2**31, 2**32 - 1, 2**32, -1, 1.5, None, "5"])
def test_a_tokenizer_with_hostile_ids_is_refused_or_harmless(folder: Path, number: Any) -> None:
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    spec = json.loads(text)
    spec["model"]["vocab"]["river"] = number
    file.write_text(json.dumps(spec))
    refused(load_model, folder)
    refused(describe_model, folder)
    spec = json.loads(text)
    spec["added_tokens"][0]["id"] = number
    file.write_text(json.dumps(spec))
    if type(number) is int and 0 <= number < 2**32:  # the library goes by the vocabulary's ids
        assert load_model(folder).tokenizer.encode("river").ids.max() < 128
    else:
        refused(load_model, folder)
