"""Recurrent language models that continue a text, against transformers, and at any split of it."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.byte_tokenizer import Bytes
from safetensors.torch import load_file

from runnel.backbones.checkpoint.load import load_backbone
from runnel.errors import CheckpointError, InputError
from runnel.models.recurrent.language_model import LanguageModel, read_lm_head

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ["mamba1-tiny-hf", "mamba2-tiny-hf", "rwkv7-tiny-fla", "xlstm-tiny-hf"]


@pytest.fixture
def load(monkeypatch):
    monkeypatch.setattr(
        "runnel.models.recurrent.language_model.load_tokenizer", lambda folder, backbone: Bytes()
    )
    return lambda name, dtype="float32": LanguageModel.load(
        GOLDEN / name, dtype=dtype, device="cpu"
    )


@pytest.mark.parametrize("name", ["mamba1-tiny-hf", "mamba2-tiny-hf", "xlstm-tiny-hf"])
def test_logits_and_greedy_text_are_those_of_transformers(load, name):
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDEN / name, dtype=torch.float32
    ).eval()
    model = load(name)
    ids = load_file(GOLDEN / name / "expected.safetensors")["input_ids"][:40].long()
    with torch.no_grad():
        expected = theirs(ids[None], use_cache=False).logits[0].float()
        assert (model.logits(ids)[0] - expected).abs().max() < 1e-3
        written = model.generate(Bytes().decode(ids.tolist()), max_tokens=6)
        for token in written.ids:
            assert token == int(theirs(ids[None], use_cache=False).logits[0, -1].argmax())
            ids = torch.cat([ids, torch.tensor([token])])
    assert written.finish == "length" and len(written.ids) == 6


@pytest.mark.parametrize(
    "name",
    ["rwkv7-tiny-official", "rwkv7-tiny-fla", "mamba2-tiny-original", "codestral-tiny-native"],
)
def test_the_head_of_every_layout_is_applied_to_the_reference_hidden_states(load, name):
    path = GOLDEN / name
    found = load(name)
    expected = load_file(path / "expected.safetensors")
    weights = {
        "rwkv7-tiny-official": "rwkv7-golden-0.0b.pth",
        "mamba2-tiny-original": "pytorch_model.bin",
    }
    if name in weights:
        tensors = torch.load(path / weights[name], weights_only=True)
    else:
        tensors = load_file(next(path.glob("[cm]o*.safetensors")))
    head = next(
        tensor for key, tensor in tensors.items() if key.endswith(("head.weight", "lm_head.weight"))
    ).float()
    assert (found.logits(expected["input_ids"])[0] - expected["hidden"] @ head.T).abs().max() < 2e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_a_state_holds_what_was_read_and_written(load, name, monkeypatch):
    monkeypatch.setattr("runnel.models.recurrent.language_model._STEP", 7)
    model = load(name, "float64")
    text = "The mill stands at the river."
    first = model.generate(text, max_tokens=5)
    again = model.generate(" And", first.state, max_tokens=5)
    assert again.ids == model.generate(f"{text}{first.text} And", max_tokens=5).ids
    document = model.read(text)
    for prompt in (" Where", " Who"):
        assert (
            model.generate(prompt, document, max_tokens=4).ids
            == model.generate(text + prompt, max_tokens=4).ids
        )
    assert document.tokens.tolist() == [len(text)], "prompts leave the document's state unchanged"


def test_a_text_ends_at_its_stop_or_its_limit(load):
    model = load("mamba2-tiny-hf")
    whole = model.generate("abc", max_tokens=8)
    stop = whole.ids[5]
    ended = model.generate("abc", max_tokens=8, stop_ids={stop})
    assert ended.finish == "stop" and ended.ids == whole.ids[: whole.ids.index(stop)]
    model.tokenizer.end_id = stop
    assert model.generate("abc", max_tokens=8).ids == ended.ids
    model.tokenizer.end_id, model.tokenizer.vocab_size = None, 3
    assert max(model.generate("abc", max_tokens=8).ids) < 3, (
        "rows beyond the vocabulary are padding"
    )
    for prompt, most, message in (("", 1, "the prompt has no tokens"), ("a", 0, "max_tokens is 0")):
        with pytest.raises(InputError, match=message):
            model.generate(prompt, max_tokens=most)


def test_heads_that_are_missing_or_have_another_shape(load, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"codestral-tiny-hf .*lm_head\.weight or head\.weight"
    ):
        load("codestral-tiny-hf")
    assert load("mamba1-tiny-hf").head.weight is None, "a shared table is not copied"
    shutil.copytree(GOLDEN / "xlstm-tiny-hf", tmp_path / "x")
    backbone = load_backbone(GOLDEN / "mamba1-tiny-hf", dtype="float32", device="cpu")
    with pytest.raises(
        CheckpointError,
        match=r"mis-shaped tensor 'lm_head.weight' is \(256, 128\) in .*, expected \(256, 64\)",
    ):
        read_lm_head(tmp_path / "x", {}, backbone)
