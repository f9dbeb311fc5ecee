"""Model folders: saved and loaded without loss, in 8 bits with little, and refused when damaged or
hostile.
"""

import copy
import dataclasses
import itertools
import json
import pickle
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_backbones import needs_int8
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.backbones.encoder.config import EncoderConfig, Form
from runnel.backbones.encoder.model import Encoder
from runnel.errors import CheckpointError, InputError
from runnel.models.describe import describe_model
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.pocket.steps import read_blocks
from runnel.models.recurrent.heads import PlainMeanVector
from runnel.request import TokenCount
from runnel.text.sentences import UNITS

Keys = tuple[str, ...]
BACKBONE = ("backbone", "config")
ABSENT = object()


def change(folder: Path, path: Keys, value: Any) -> None:
    """Change a value of Runnel's part of a folder's config, or take it out."""
    config = json.loads((folder / "config.json").read_text())
    *above, last = ("runnel", *path)
    at = config
    for name in above:
        at = at[name]
    if value is ABSENT:
        del at[last]
    else:
        at[last] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_one_folder_does_three_jobs_bit_exactly(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tokenizer")
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model", dtype="float32")
    assert np.array_equal(Embedder(model).encode("cat sat"), Embedder(again).encode("cat sat"))
    assert np.array_equal(
        Reranker(model).score("cat", ["a cat", "dog"]),
        Reranker(again).score("cat", ["a cat", "dog"]),
    )
    sentences = [
        SentenceRetriever(loaded).score("cat", "A cat sat. A dog.") for loaded in (model, again)
    ]
    assert sentences[0] == sentences[1] and again.prompts == model.prompts
    for unit in UNITS:
        model.unit = unit
        model.save(tmp_path / "other")
        assert load_model(tmp_path / "other").unit == unit
    assert (
        again.backbone.fingerprint() == model.backbone.fingerprint()
        and again.fingerprint() == model.fingerprint()
    )
    with torch.no_grad():
        again.heads["sentences"].cosine_weight += 1
    assert (
        again.backbone.fingerprint() == model.backbone.fingerprint()
        and again.fingerprint() != model.fingerprint()
    )
    model.save(tmp_path / "small", weights="int8")
    small = Embedder.load(tmp_path / "small", dtype="float32").encode("the cat sat")
    assert float(small @ Embedder(model).encode("the cat sat")) > 0.999
    with pytest.raises(InputError, match=r"weights.*'int4'.*as_is, int8"):
        model.save(tmp_path / "x", weights="int4")
    del model.heads["features"]
    model.features = None
    with pytest.raises(CheckpointError, match=r"tiny .*token features.*'sentences'"):
        model.head("sentences")


def test_no_file_of_a_folder_is_ever_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path / "tokenizer")
    written = []

    def noting(write: Callable[..., int]) -> Callable[..., int]:
        return lambda path, *data, **options: (
            written.append(path.suffix) or write(path, *data, **options)
        )

    for name in ("write_text", "write_bytes"):
        monkeypatch.setattr(Path, name, noting(getattr(Path, name)))
    model.save(tmp_path / "model")
    assert written == [".partial"] * 6


def judging_model(folder: Path) -> Model:
    own = {"sentence_layers": 1, "judge_layers": 2, "pair_layers": 1}
    config = EncoderConfig(
        128, 64, 3, 2, 128, max_positions=22, passage_tokens=12, begin_id=2, **own
    )
    torch.manual_seed(3)
    plain = tiny_encoder(folder)
    heads = nn.ModuleDict({"embed": PlainMeanVector()})
    return dataclasses.replace(plain, backbone=Encoder(config).eval(), heads=heads)


READ_TOGETHER: list[tuple[Form, ...]] = [
    ("texts",),
    ("sentences",),
    ("texts", "sentences"),
    ("judge",),
    ("pair",),
]


def hidden(model: Model, forms: tuple[Form, ...] = ("texts",)) -> Tensor:
    ids = np.array([2, 5, 9, 40, 3, 7, 3])
    ((_, vectors),) = read_blocks(model, forms, [ids], TokenCount(None))
    return torch.from_numpy(vectors)


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "bfloat16",
        pytest.param("int8", marks=needs_int8),
    ],
)
@pytest.mark.parametrize("weights", ["as_is", "int8"])
def test_layers_of_every_form_are_kept(tmp_path: Path, weights: str, dtype: str) -> None:
    model = judging_model(tmp_path / "tokenizer")
    model.save(tmp_path / "first", weights=weights)
    tensors = load_file(tmp_path / "first/model.safetensors")
    stored = {
        name.split(".")[1]: tensor.dtype
        for name, tensor in tensors.items()
        if name.endswith("0.qkv.weight")
    }
    assert set(stored) == {"layers", "sentence_layers", "judge_layers", "pair_layers"}
    assert set(stored.values()) == {torch.int8 if weights == "int8" else torch.float32}
    first = load_model(tmp_path / "first", dtype, "cpu")
    first.save(tmp_path / "second")
    second = load_model(tmp_path / "second", dtype, "cpu")
    assert first.fingerprint() == second.fingerprint()
    before, kept, same = (
        [hidden(one, forms) for forms in READ_TOGETHER] for one in (model, first, second)
    )
    assert all(map(torch.equal, kept, same))
    texts, sentences, _, *again = kept
    assert all(one.shape == texts.shape for one in again)
    assert not any(
        torch.allclose(one, other)
        for one, other in itertools.combinations([texts, sentences, *again], 2)
    )
    for one, other in zip(before, kept, strict=True):
        assert torch.nn.functional.cosine_similarity(one, other).min() > 0.999
        assert not (weights == "as_is" and dtype == "float32") or torch.equal(one, other)


def test_changed_judge_layers_are_another_model_and_a_description_counts_them(
    tmp_path: Path,
) -> None:
    model = judging_model(tmp_path / "tokenizer")
    model.save(tmp_path / "model", weights="int8")
    facts = describe_model(str(tmp_path / "model"))
    again = load_model(tmp_path / "model", "float32", "cpu")
    assert facts["parameters"] == sum(p.numel() for p in again.backbone.parameters())
    assert (
        facts["config"]["judge_layers"] == 2
        and facts["flops_per_token"] == model.backbone.flops_per_token
    )
    before = again.fingerprint()
    texts = hidden(again)
    with torch.no_grad():
        again.backbone.judge_layers[1].down.weight += 1
    again.backbone.eval()
    assert again.fingerprint() != before and torch.equal(hidden(again), texts)


def sharing_folder(tmp_path: Path) -> Path:
    """Return the folder of a model that has its embeddings and a head's tables in another's."""
    folder = tmp_path / "model"
    tiny_encoder(tmp_path / "tokenizer", mixers=True).save(folder, weights="int8")
    shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(folder / "model.safetensors")
    names = ["backbone.embeddings.weight", "backbone.layers.1.up.weight", "heads.features.idf"]
    for name in names:
        tensors.pop(name)
        tensors.pop(f"{name}.scale", None)
    save_file(tensors, folder / "model.safetensors")
    change(folder, ("shared",), {"other": names})
    return folder


def test_a_model_may_have_tensors_of_another(tmp_path: Path) -> None:
    folder = sharing_folder(tmp_path)
    text = "A river runs to the sea. The cat sat on the mat. A dog ran. A river runs."
    vectors = [Embedder.load(path).encode(text) for path in (folder, tmp_path / "other")]
    assert np.array_equal(*vectors)
    assert (
        describe_model(str(folder))["parameters"]
        == describe_model(str(tmp_path / "other"))["parameters"]
    )
    assert list(describe_model(str(folder))["files"]) == [
        "../other/model.safetensors",
        "model.safetensors",
    ]
    load_model(folder).save(tmp_path / "again")  # with a copy of its own
    shutil.rmtree(tmp_path / "other")
    assert np.allclose(Embedder.load(tmp_path / "again").encode(text), vectors[0], atol=1e-6)


def test_a_model_whose_other_is_missing_or_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = sharing_folder(tmp_path)
    for shared, named in (
        ({"other": ["backbone.no_such"]}, "backbone.no_such"),
        ({"../other": []}, "'../other'"),
        ({"nobody": []}, "nobody"),
        ({"other": "all"}, "shared"),
    ):
        change(folder, ("shared",), shared)
        with pytest.raises(CheckpointError, match=re.escape(named)):
            load_model(folder)


def test_copies_have_engines_of_their_own(tmp_path: Path) -> None:
    model = judging_model(tmp_path / "tokenizer")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert model.engine is not other.engine
        assert all(
            torch.equal(hidden(model, forms), hidden(other, forms)) for forms in READ_TOGETHER
        )


def test_without_judge_layers_the_layers_for_texts_judge(tmp_path: Path) -> None:
    model = tiny_encoder(tmp_path / "tokenizer", sentence_layers=1)
    assert torch.equal(hidden(model, ("judge",)), hidden(model))
    assert torch.equal(hidden(model, ("pair",)), hidden(model))
    assert not torch.equal(hidden(model, ("sentences",)), hidden(model))
    model.save(tmp_path / "model")
    change(tmp_path / "model", (*BACKBONE, "judge_layers"), 1)
    with pytest.raises(CheckpointError, match=r"missing tensors? .*'judge_layers\.0\."):
        load_model(tmp_path / "model", "float32", "cpu")


# ---- a damaged or hostile config.json: one CheckpointError each, at once, and without memory for
# its numbers

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "state_size",
    "head_size",
    "groups",
    "conv_width",
    "expand",
)
NO_OBJECTS = (None, [], 1, "x", {})

# Where in the object "runnel", and what is put there.
CHANGES: list[tuple[Keys, Any]] = [
    *(((), value) for value in NO_OBJECTS),
    *(((*BACKBONE, name), value) for name in SIZES for value in (10**9, 2**63, 2.5)),
    *(
        ((*BACKBONE, name), value)
        for name in ("num_layers", "expand")
        for value in (10**6, -1, 0, True, "2", None, [2], {})
    ),
    *(
        ((*BACKBONE, name), value)
        for name in ("norm_eps", "dt_min", "dt_max")
        for value in ("x", [], -1, float("nan"), 2**63)
    ),
    ((*BACKBONE, "norm_eps"), float("inf")),
    ((*BACKBONE, "conv_bias"), 1),
    ((*BACKBONE, "extra"), 1),
    ((*BACKBONE, "expand"), ABSENT),
    *(
        ((name,), value)
        for name in ("backbone", "heads", "templates", "markers")
        for value in (ABSENT, *NO_OBJECTS)
    ),
    *(
        (("prompts",), value)
        for value in (ABSENT, None, ["query: "], {"query": 1}, {"query": None})
    ),
    *((("version",), value) for value in (ABSENT, None, "1", 99, [1])),
    (("extra",), 1),
    *((("unit",), value) for value in ("page", ["sentence"])),
    *((("backbone", "architecture"), value) for value in (ABSENT, None, "mamba9", [], {})),
    *((("heads", "rerank"), value) for value in (ABSENT, None, {}, ["match_score"])),
    *(
        (("heads", "rerank", "kind"), value)
        for value in ("mystery", ["match_score"], "token_features")
    ),
    *((("heads", "rerank", "match_size"), value) for value in (10**12, 2 * 10**9, 9, 8.0)),
    (("heads", "rerank", "lexical"), ABSENT),
    (("heads", "rerank", "hidden_size"), 32),
    (("heads", "rerank", "extra"), 1),
    *((("heads", "embed", "size"), value) for value in (10**9, -1)),
    (("heads", "features", "kind"), "end_score"),
    *((("heads", name), {"kind": "end_score"}) for name in ("a.b", "other")),
    *((("templates", "rerank"), value) for value in (ABSENT, None)),
    *((("templates", "rerank", "template"), value) for value in (1, "{nothing}", "{")),
    (("templates", "document", "extra"), 1),
    *(
        (("markers", name), value)
        for name in ("begin", "end")
        for value in (ABSENT, 10**9, -1, "[CLS]", 2.0, [])
    ),
]


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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read(str(folder))
    assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"
    assert len(str(caught.value)) < 900
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    CHANGES,
    ids=lambda part: ".".join(part) if isinstance(part, tuple) else repr(part)[:20],
)
def test_a_hostile_config_is_refused(folder: Path, path: Keys, value: Any) -> None:
    change(folder, path, value)
    for read in (load_model, describe_model):
        assert str(folder) in refused(read, folder)


@pytest.mark.parametrize(
    "key", ["expand", "conv_kernel", "num_hidden_layers", "hidden_size", "state_size"]
)
def test_a_published_format_with_hostile_sizes_is_refused(tmp_path: Path, key: str) -> None:
    backbone = tiny_model(tmp_path / "tokenizer").backbone
    save_file(
        {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    config = {
        "model_type": "mamba2",
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 16,
    }
    config |= {"head_dim": 16, "n_groups": 1}
    for value in (10**9, 10**15):
        heads = value * 4 if key in ("expand", "hidden_size") else 4
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value, "num_heads": heads}))
        refused(load_model, tmp_path)


def test_one_layer_with_a_high_number_is_one_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.999998.norm.weight"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors")
    change(folder, (*BACKBONE, "num_layers"), 999_999)
    assert "num_layers is 999999 in its config, in the weights it is 3" in refused(
        load_model, folder
    )


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


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoder(folder / "tokenizer").save(folder / "model")
    return folder / "model"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 99),
        (("backbone",), ABSENT),
        (("backbone", "config"), ABSENT),
        (("backbone", "config"), []),
        (("backbone", "config", "num_heads"), 5),
        (("backbone", "architecture"), ABSENT),
        (("backbone", "architecture"), "unknown"),
        (("heads",), []),
        (("heads", "sentences", "kind"), "end_scores"),
        (("heads", "sentences", "size"), "8"),
        (("templates", "document"), ABSENT),
        ((), None),
        ((), "text"),
    ],
    ids=lambda part: ".".join(part) if isinstance(part, tuple) else repr(part)[:20],
)
def test_a_damaged_encoder_is_refused_by_one_error(
    encoder_folder: Path, tmp_path: Path, path: Keys, value: Any
) -> None:
    """Whichever room reads it; no other one is tried."""
    folder = shutil.copytree(encoder_folder, tmp_path / "model")
    change(folder, path, value)
    for load in (Embedder.load, load_model):
        with pytest.raises(CheckpointError, match=re.escape(str(folder))):
            load(str(folder), "float32", "cpu")
