"""`runnel info`: what it prints."""

import json
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_transformers import write_transformer

from runnel.models import describe
from runnel.models.describe import describe_model


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Always the same: three cores, 4 GiB free, no GPU, no bf16."""
    monkeypatch.setattr(describe, "available_memory", lambda: 4 << 30)
    monkeypatch.setattr(describe, "cores", lambda: 3)
    monkeypatch.setattr(describe, "has_native_bf16", lambda: False)
    monkeypatch.setattr("runnel.ops.backend.has_native_bf16", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def lines(done):
    """Label -> text of each line; lines without a label belong to the one before."""
    found = {}
    label = ""
    for line in done.out.splitlines():
        label = line[:20].strip() or label
        found[label] = (found.get(label, "") + " " + line[20:]).strip()
    return found


def test_a_model_folder(run, tmp_path, monkeypatch):
    tiny_model(tmp_path / "tokenizer").save(model := tmp_path / "tiny")
    done = run("info", model)
    assert (done.code, done.err) == (0, "") and max(map(len, done.out.splitlines())) <= 120
    shown = lines(done)
    wanted = {
        "parameters": "19,896",
        "weights": "77.7 KiB",
        "state per sequence": "10.2 KiB, in each layer conv 96x3, ssm 4x16x16",
        "work per token": "39.8 kFLOP",
        "markers": "begin 2 ([CLS])",
        "templates": "{begin}{document}{end}{query}{end}",
        "prompts": "'a river runs: '",
        "machine": "3 cores, 1 thread",
        "free memory": "4.0 GiB",
        "longest step": "4,096 tokens",
    }
    assert {label: text for label, text in wanted.items() if text not in shown[label]} == {}
    assert json.loads(run("info", model, "--json").out) == describe_model(str(model))
    for free, fits in (
        (100_000, "97.7 KiB: it fits as bfloat16"),
        (10_000, "9.8 KiB: it does not fit, not even as bfloat16"),
    ):
        monkeypatch.setattr(describe, "available_memory", lambda free=free: free)
        assert lines(run("info", model))["free memory"] == fits


def test_models_that_read_passages_or_whole_texts_and_a_file_of_weights(run, tmp_path):
    tiny_encoder(tmp_path / "tiny").save(tmp_path / "model")
    write_transformer(tmp_path / "bert", "bert")
    shown = lines(run("info", tmp_path / "model"))
    other = lines(run("info", tmp_path / "bert"))
    assert (
        shown["state per sequence"]
        == "none: reads documents in passages of 12 tokens, a short text of up to 22 tokens as one"
        and "attention in a text of 12 tokens" in shown["work per token"]
    )
    assert (
        other["architecture"].endswith("transformers layout")
        and "40 tokens" in other["state per sequence"]
    )
    assert "states that fit" not in shown | other and other["free memory"].endswith(
        "it fits as bfloat16 and as float32"
    )
    # without a tokenizer
    (path,) = (Path(__file__).parents[1] / "golden" / "rwkv7-tiny-official").glob("*.pth")
    shown = lines(run("info", path))
    assert shown["architecture"] == "rwkv7: RWKV-7, official layout"
    assert (
        shown["state per sequence"]
        == "99.0 KiB, in each layer att_shift 128, wkv 2x64x64, ffn_shift 128"
    )
    assert "tokenizer" in shown["problem"] and "heads" not in shown


def test_an_index_is_no_model(run, tmp_path):
    (tmp_path / "a.txt").write_text("The river was low.")
    assert run("index", "a.txt", "--to", "texts").code == 0
    done = run("info", "texts")
    assert (done.code, done.out) == (1, "")
    assert (
        "error: texts is an index, not a model; `runnel search QUERY --in texts` searches it"
        in done.err
    )
