"""Transformer baselines: every hidden vector is what the transformers library gives for that text alone."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import assert_close, cumulative
from helpers.tiny_transformers import CONFIGS, LONGEST, VOCABULARY, library_class, write_transformer
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from runnel.backbones.checkpoint.load import build_backbone
from runnel.backbones.layers import sub_batches
from runnel.backbones.transformer.config import FAMILIES, TransformerConfig, choose_attention, recognizes
from runnel.backbones.transformer.formats import load
from runnel.backbones.transformer.model import Transformer
from runnel.errors import BackendUnavailable, CheckpointError, InputError, MissingDependency, NumericalError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

# (architecture, output): every way to read. None is the default.
WAYS = [(name, None) for name in CONFIGS] + [("bart", "encoder"), ("bart", "first"), ("t5", "first"), ("t5", "decoder")]
# The checkpoints are published with heads of many kinds, which are left out.
SAVED_AS = {
    "bert": "ForMaskedLM",
    "electra": "ForPreTraining",
    "modernbert": "ForMaskedLM",
    "roberta": "Model",
    "opt": "ForCausalLM",
    "gpt_neox": "ForCausalLM",
    "llama": "ForCausalLM",
    "bart": "ForConditionalGeneration",
    "t5": "ForConditionalGeneration",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """architecture -> folder of its checkpoint, written once."""
    written: dict[str, Path] = {}

    def of(architecture: str) -> Path:
        if architecture not in written:
            written[architecture] = tmp_path_factory.mktemp(architecture)
            write_transformer(written[architecture], architecture, SAVED_AS.get(architecture, "Model"))
        return written[architecture]

    return of


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "-".join(filter(None, way)))
def way(request: pytest.FixtureRequest, folder: Any) -> tuple[Transformer, Any]:
    """A loaded backbone, and a function from one text's ids to what the library gives for it."""
    architecture, output = request.param
    place = folder(architecture)
    return load(place, "float32", "cpu", output=output).backbone, reference(place, architecture, output)


def reference(place: Path, architecture: str, output: str | None) -> Any:
    kind = "EncoderModel" if (architecture, output) == ("t5", None) else "Model"
    model = library_class(architecture, kind).from_pretrained(place, attn_implementation="eager")

    def alone(ids: Tensor) -> Tensor:
        with torch.no_grad():
            if output == "encoder":
                return model.get_encoder()(ids[None]).last_hidden_state[0]
            if output == "first":
                start = torch.tensor([[model.config.decoder_start_token_id]])
                return model(ids[None], decoder_input_ids=start).last_hidden_state[0].expand(len(ids), -1)
            if output == "decoder":
                return model(ids[None], decoder_input_ids=model._shift_right(ids[None])).last_hidden_state[0]
            return model(ids[None]).last_hidden_state[0]

    return alone


def some_ids(length: int, seed: int) -> Tensor:
    return torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


def test_every_family_is_tested() -> None:
    assert FAMILIES.keys() == CONFIGS.keys()


def test_any_packing_equals_the_library_on_each_text_alone(way: tuple[Transformer, Any]) -> None:
    backbone, alone = way
    lengths = (LONGEST, 0, 1, 7, 30, 31, 2, LONGEST, 9)
    texts = [some_ids(length, seed) for seed, length in enumerate(lengths)]
    for shuffle in range(2):
        random.Random(shuffle).shuffle(texts)
        hidden, state = backbone(torch.cat(texts), cumulative(tuple(map(len, texts))))
        assert hidden.dtype == torch.float32 and hidden.shape == (sum(lengths), backbone.hidden_size)
        assert state.tokens.tolist() == [len(text) for text in texts] and state.bytes == 0
        for text, got in zip(texts, hidden.split([len(text) for text in texts]), strict=True):
            if len(text):
                assert_close(got, alone(text), 1e-5)


def test_steps_equal_forward_and_nothing_is_wanted_of_a_pool(way: tuple[Transformer, Any]) -> None:
    backbone, _ = way
    ids, cu_seqlens, none = some_ids(20, 0).int(), cumulative((6, 14)), torch.tensor([-1, -1])
    hidden = backbone.step(ids, cu_seqlens, backbone.new_state(1), none, none)
    assert_close(hidden, backbone(ids, cu_seqlens)[0])
    assert backbone.step(ids[:0], cumulative((0,)), backbone.new_state(1), none[:1], none[:1]).shape == (0, backbone.hidden_size)


def test_a_state_is_refused_wherever_it_could_enter(way: tuple[Transformer, Any]) -> None:
    backbone, _ = way
    ids, cu_seqlens, row, none = some_ids(5, 0), cumulative((5,)), torch.tensor([0]), torch.tensor([-1])
    assert backbone.state_shapes() == {} and backbone.state_bytes == 0 and not backbone.recurrent
    message = f"{backbone.family.title} reads a text only whole.*encode\\(\\) or score\\(\\)"
    with pytest.raises(StateError, match=message):
        backbone(ids, state=backbone.new_state(1))
    for read, write in ((row, none), (none, row)):
        with pytest.raises(StateError, match=message):
            backbone.step(ids, cu_seqlens, backbone.new_state(1), read, write)


def test_vectors_added_to_the_embeddings(way: tuple[Transformer, Any]) -> None:
    backbone, alone = way
    ids = some_ids(12, 1)
    width = backbone.embed(ids).shape[1]
    assert_close(backbone(ids, cumulative((5, 7)), added=torch.zeros(12, width))[0][:5], alone(ids[:5]), 1e-5)
    moved = backbone(ids, cumulative((5, 7)), added=torch.randn(12, width, generator=torch.Generator().manual_seed(0)))[0]
    assert (moved - backbone(ids, cumulative((5, 7)))[0]).abs().max() > 1e-2
    with pytest.raises(InputError, match="of width 3"):
        backbone(ids, added=torch.zeros(12, 3))


def test_longer_than_the_model_reads(way: tuple[Transformer, Any]) -> None:
    backbone, _ = way
    if backbone.family.title == "T5":
        assert backbone.max_tokens is None
        assert backbone(some_ids(700, 0))[0].shape == (700, 32)
        return
    assert backbone.max_tokens == LONGEST
    with pytest.raises(InputError, match=r"the text has 41 tokens.*reads at most 40; cut it with max_tokens=, split it"):
        backbone(some_ids(LONGEST + 1 + 3, 0), cumulative((3, LONGEST + 1)))


def test_bf16_is_close_and_fp64_closer(way: tuple[Transformer, Any], folder: Any, request: pytest.FixtureRequest) -> None:
    _, alone = way
    architecture, output = request.node.callspec.params["way"]
    ids = some_ids(25, 3)
    low = load(folder(architecture), "bfloat16", "cpu", output=output).backbone
    assert {p.dtype for p in low.parameters()} == {torch.bfloat16}
    hidden = low(ids)[0]
    assert hidden.dtype == torch.float32
    assert 1e-5 < (hidden - alone(ids)).norm() / alone(ids).norm() < 0.05
    high = load(folder(architecture), torch.float64, "cpu", output=output).backbone(ids)[0]
    assert high.dtype == torch.float64
    assert_close(high.float(), alone(ids), 1e-5)


def test_gradients_reach_every_weight_that_reads(
    way: tuple[Transformer, Any], folder: Any, request: pytest.FixtureRequest
) -> None:
    architecture, output = request.node.callspec.params["way"]
    backbone = load(folder(architecture), "float32", "cpu", output=output).backbone
    backbone(some_ids(30, 0), cumulative((18, 12)))[0].square().sum().backward()
    got = sum(p.grad is not None for p in backbone.parameters())
    assert got / len(list(backbone.parameters())) > (0.3 if (architecture, output) == ("bart", "encoder") else 0.95)


def test_costs_are_those_of_the_layers(way: tuple[Transformer, Any], request: pytest.FixtureRequest) -> None:
    """32 wide, 48 inside, 2 layers, 4 heads of 8."""
    architecture, output = request.node.callspec.params["way"]
    square, feed = 32 * 32, 32 * 48
    encoder = 2 * (4 * square + 2 * feed)
    decoder = 2 * (8 * square + 2 * feed)
    expected = {
        ("bert", None): encoder,
        ("roberta", None): encoder,
        ("electra", None): encoder + 16 * 32,
        ("modernbert", None): 2 * (4 * square + 3 * feed),
        ("bart", "encoder"): encoder,
        ("bart", "first"): encoder + 2 * 2 * square,
        ("bart", None): encoder + decoder,
        ("t5", None): encoder + 2 * feed,
        ("t5", "first"): encoder + 2 * feed + 2 * 2 * square,
        ("t5", "decoder"): encoder + decoder + 4 * feed,
        ("opt", None): encoder + 2 * 16 * 32,
        ("gpt_neox", None): encoder,
        **{(name, None): 2 * (3 * square + 3 * feed) for name in ("llama", "mistral", "qwen2")},
    }
    assert way[0].flops_per_token == 2 * expected[architecture, output]
    assert way[0].step_bytes_per_token > 4 * 3 * way[0].hidden_size


@pytest.mark.parametrize("tokens", [1, 17, LONGEST])
def test_flops_are_those_of_the_products_that_run(folder: Any, way: tuple[Transformer, Any], tokens: int, request: Any) -> None:
    """Counted by torch where it runs them one by one; it runs whole squares of attention for decoders, too."""
    architecture, output = request.node.callspec.params["way"]
    backbone = load(folder(architecture), "float32", "cpu", output=output, attention="eager").backbone
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(some_ids(tokens, 0))
    unseen = tokens * tokens - tokens * (tokens + 1) // 2
    masked = 4 * 32 * 2 * unseen if backbone.config.causal or backbone.config.output == "decoder" else 0
    known = counter.get_total_flops() - masked
    if output == "first":  # its own token's layers are not counted as the text's
        known -= 2 * 2 * (6 * 32 * 32 + (3 if architecture == "t5" else 2) * 32 * 48)
    assert backbone.flops(tokens) == known


def test_a_saved_folder_of_our_own_gives_the_same(way: tuple[Transformer, Any]) -> None:
    """What `Model.save` and `load_checkpoint` do: config to a dict and back, weights by their names in the module."""
    backbone, alone = way
    config = TransformerConfig.from_dict(json.loads(json.dumps(backbone.config.to_dict())))
    assert config == backbone.config and config.num_layers == 2
    again = Transformer(config)
    again.load_state_dict({name: tensor.clone() for name, tensor in backbone.state_dict().items()}, strict=True, assign=True)
    again.eval()
    ids = some_ids(22, 5)
    assert_close(again(ids)[0], alone(ids), 1e-5)
    assert again.fingerprint() == backbone.fingerprint()


# ---- sub-batches -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 600), max_size=40))
def test_sub_batches_take_every_text_once_and_waste_little(lengths: list[int]) -> None:
    batches = list(sub_batches(lengths))
    assert sorted(i for batch in batches for i in batch) == [i for i, length in enumerate(lengths) if length]
    for batch in batches:
        padded, tokens = len(batch) * max(lengths[i] for i in batch), sum(lengths[i] for i in batch)
        assert 8 * padded <= 9 * tokens or padded <= 128


def test_equal_lengths_are_one_batch() -> None:
    assert list(sub_batches([300] * 5)) == [[0, 1, 2, 3, 4]]


# ---- token types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["bert", "electra"])
def test_after_the_first_separator_begins_the_second_text(folder: Any, architecture: str) -> None:
    import dataclasses

    plain = load(folder(architecture), "float32", "cpu").backbone
    backbone = Transformer(dataclasses.replace(plain.config, separator=3), plain.model)
    model = library_class(architecture, "Model").from_pretrained(folder(architecture))
    pair = torch.tensor([2, 20, 21, 3, 30, 31, 32, 3])
    single = torch.tensor([2, 20, 21, 22, 23, 24, 3])
    hidden = backbone(torch.cat([pair, single]), cumulative((8, 7)))[0]
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        assert_close(hidden[:8], model(pair[None], token_type_ids=types).last_hidden_state[0], 1e-5)
        assert_close(hidden[8:], model(single[None]).last_hidden_state[0], 1e-5)
    assert (hidden[:8] - plain(pair)[0]).abs().max() > 1e-3


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_pickled_sharded_and_old_names(tmp_path: Path) -> None:
    model = write_transformer(tmp_path / "new", "bert", "ForSequenceClassification", num_labels=1)
    ids = some_ids(9, 0)
    expected = load(tmp_path / "new", "float32", "cpu").backbone(ids)[0]
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in model.state_dict().items()
    }
    (tmp_path / "old").mkdir()
    (tmp_path / "old/config.json").write_text((tmp_path / "new/config.json").read_text())
    torch.save({**old, "bert.embeddings.position_ids": torch.arange(LONGEST)[None]}, tmp_path / "old/pytorch_model.bin")
    found = load(tmp_path / "old", "float32", "cpu")
    assert torch.equal(found.backbone(ids)[0], expected)
    assert found.layout == "BERT, transformers layout"
    assert found.heads.keys() == {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"}
    assert torch.equal(found.heads["classifier.weight"], model.classifier.weight)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert torch.equal(load(tmp_path / "shards", "float32", "cpu").backbone(ids)[0], expected)


def changed(source: Path, target: Path, tensors: Any = None, **config: Any) -> Path:
    """A copy of a checkpoint with another config or other tensors."""
    target.mkdir()
    (target / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | config))
    stored = load_file(source / "model.safetensors")
    save_file(tensors(stored) if tensors else stored, target / "model.safetensors")
    return target


def test_what_cannot_be_loaded_is_said(folder: Any, tmp_path: Path) -> None:
    source = folder("llama")
    without = lambda stored: {k: v for k, v in stored.items() if "layers.1.mlp" not in k}  # noqa: E731
    with pytest.raises(CheckpointError, match=r"missing layers\.1\.mlp\.down_proj\.weight, layers\.1\.mlp\.gate_proj"):
        load(changed(source, tmp_path / "a", without))
    with pytest.raises(CheckpointError, match=r"unexpected .*odd"):
        load(changed(source, tmp_path / "b", lambda stored: stored | {"model.odd": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"mis-shaped norm.weight is \(31,\), expected \(32,\)"):
        load(changed(source, tmp_path / "c", lambda stored: stored | {"model.norm.weight": torch.ones(31)}))
    with pytest.raises(NumericalError, match=r"model.norm.weight.*NaN"):
        load(changed(source, tmp_path / "d", lambda stored: stored | {"model.norm.weight": torch.full((32,), float("nan"))}))
    with pytest.raises(CheckpointError, match="quantized"):
        load(changed(source, tmp_path / "e", quantization_config={"bits": 4}))
    with pytest.raises(CheckpointError, match="'gpt2' checkpoint; the transformers read here are bert, roberta, electra"):
        load(changed(source, tmp_path / "f", model_type="gpt2"))
    with pytest.raises(CheckpointError, match=r"the transformers library does not take this Llama config: .*hidden_size"):
        load(changed(source, tmp_path / "g", hidden_size="wide"))


def test_kernels_and_classes_that_a_config_names_are_ignored(folder: Any, tmp_path: Path) -> None:
    odd = {
        "_attn_implementation": "someone/kernel",
        "transformers_weights": "x.bin",
        "architectures": ["Evil"],
    }
    place = changed(folder("qwen2"), tmp_path / "odd", **odd)
    found = load(place, "float32", "cpu").backbone
    assert torch.equal(found(some_ids(9, 0))[0], load(folder("qwen2"), "float32", "cpu").backbone(some_ids(9, 0))[0])
    assert found.attention == "sdpa" and "architectures" not in found.config.library


def test_recognizes() -> None:
    assert recognizes({"model_type": "mistral"}) and recognizes({"model_type": "bert"})
    for other in (
        None,
        {},
        {"model_type": "mamba2"},
        {"model_type": "mistral", "dim": 4096},
        {"model_type": "bert", "runnel": {}},
    ):
        assert not recognizes(other)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
    place = folder("bert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r'pip install "runnel\[baselines\]"'):
        load(place)


def test_outputs_and_attention_by_name(folder: Any) -> None:
    with pytest.raises(InputError, match="output of BERT must be 'encoder', got 'first'"):
        load(folder("bert"), output="first")
    with pytest.raises(InputError, match='attention must be "auto"'):
        load(folder("bert"), attention="fast")
    with pytest.raises(BackendUnavailable, match="flash attention does not run here: it needs a CUDA device"):
        load(folder("bert"), "float32", "cpu", attention="flash")
    assert load(folder("bert"), "float32", "cpu", attention="eager").backbone.attention == "eager"


def test_flash_attention_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, low = torch.device("cuda"), torch.bfloat16
    assert choose_attention("auto", FAMILIES["bert"], cuda, low) == "sdpa", "not installed here"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert choose_attention("auto", FAMILIES["bert"], cuda, low) == "flash_attention_2"
    assert choose_attention("sdpa", FAMILIES["bert"], cuda, low) == "sdpa"
    assert choose_attention("auto", FAMILIES["bert"], cuda, torch.float32) == "sdpa"
    assert choose_attention("auto", FAMILIES["t5"], cuda, low) == "sdpa"
    with pytest.raises(BackendUnavailable, match="no T5 with it"):
        choose_attention("flash", FAMILIES["t5"], cuda, low)


def test_rope_scaling_lengthens_what_can_be_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LONGEST, "rope_theta": 10000.0}
    model = write_transformer(tmp_path, "qwen2", "Model", rope_parameters=scaling)
    backbone = load(tmp_path, "float32", "cpu").backbone
    assert backbone.max_tokens == 4 * LONGEST
    ids = some_ids(100, 0)
    with torch.no_grad():
        assert_close(backbone(ids)[0], model(ids[None]).last_hidden_state[0], 1e-5)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_scaling_that_mixes_texts_is_refused(tmp_path: Path, kind: str) -> None:
    write_transformer(tmp_path, "llama", "Model")
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": kind, "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 20}
    config["rope_parameters"] |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4} if kind == "longrope" else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"this Llama scales its positions by '{kind}', so the vectors of a text change"):
        load(tmp_path)


def test_ids_of_another_tokenizer(folder: Any) -> None:
    with pytest.raises(InputError, match=r"must be in \[0, 128\)"):
        load(folder("bert"), "float32", "cpu").backbone(torch.tensor([5, 128]))


def test_build_backbone_takes_one_too(way: tuple[Transformer, Any]) -> None:
    backbone, alone = way
    again = build_backbone("transformer", backbone.config.to_dict(), backbone.state_dict(), "float32", "cpu")
    assert_close(again(some_ids(9, 0))[0], alone(some_ids(9, 0)), 1e-5)
    with pytest.raises(CheckpointError, match="not a valid Transformer model"):
        build_backbone("transformer", {"library": {}}, backbone.state_dict())
