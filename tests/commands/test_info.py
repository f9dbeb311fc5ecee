"""`runnel info`: what it prints."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model

from runnel.models import describe
from runnel.models.describe import describe_model
from runnel.models.lexical import FEATURES

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


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
    found, label = {}, ""
    for line in done.out.splitlines():
        label = line[:20].strip() or label
        found[label] = (found.get(label, "") + " " + line[20:]).strip()
    return found


def test_a_model_folder(run, model):
    done = run("info", model)
    assert (done.code, done.err) == (0, "")
    shown = lines(done)
    assert list(shown) == [
        *("model", "architecture", "layers", "width", "vocabulary", "config", "parameters", "weights", "state per sequence"),
        *("work per token", "tokenizer", "markers", "heads", "templates", "prompts"),
        *("machine", "gpu", "free memory", "states that fit", "longest step"),
    ]
    assert shown["architecture"] == "mamba2: Mamba-2, runnel layout"
    assert shown["vocabulary"] == "128"
    assert {"state_size 16", "head_size 16", "groups 1", "conv_width 4", "expand 2"} <= set(shown["config"].split(", "))
    assert "hidden_size" not in shown["config"]
    assert shown["parameters"] == "19,896, of them 4,096 in the embedding"
    assert shown["weights"].endswith("on disk, float32: model.safetensors 77.7 KiB when loaded as float32 on cpu")
    assert shown["state per sequence"] == "10.2 KiB, in each layer conv 96x3, ssm 4x16x16"
    assert shown["work per token"] == (
        "41 kFLOP in linear layers, convolution and recurrence, without embedding and LM head "
        "39.8 kFLOP by the formula of papers, 2 x parameters (plus attention)"
    )
    assert shown["tokenizer"] == "tokenizer.json, 123 tokens"
    assert shown["markers"] == "begin 2 ([CLS]), end 3 ([SEP])"
    assert re.search(r"sentences: MatchScore, [\d,]+ parameters, scores a text by sentence( |$)", shown["heads"])
    assert "rerank: {begin}{document}{end}{query}{end}" in shown["templates"]
    assert shown["prompts"] == "query: 'a river runs: '"
    assert shown["machine"] == "3 cores, 1 thread, bf16 emulated"
    assert shown["gpu"] == "none"
    assert shown["free memory"] == "4.0 GiB: it fits as bfloat16 and as float32"
    assert shown["states that fit"] == f"{((4 << 30) - 4 * 19_896) // 10_496:,}"
    assert shown["longest step"] == "4,096 tokens; 1,024 unless asked for"
    assert max(map(len, done.out.splitlines())) <= 120


@pytest.mark.parametrize("unit", ["clauses", "paragraph"])
def test_the_unit_of_a_sentence_head(run, tmp_path, unit):
    model = tiny_model(tmp_path / "tokenizer")
    model.unit = unit
    model.save(tmp_path / "tiny")
    heads = describe_model(str(tmp_path / "tiny"))["heads"]
    assert {name: head.get("unit") for name, head in heads.items() if "unit" in head} == {"sentences": unit}
    assert f"scores a text by {unit}" in lines(run("info", "tiny"))["heads"]


def test_json_has_all_facts(run, model):
    assert json.loads(run("info", model, "--json").out) == describe_model(str(model))


def test_what_does_not_fit(run, model, monkeypatch):
    monkeypatch.setattr(describe, "available_memory", lambda: 100_000)
    assert lines(run("info", model))["free memory"] == "97.7 KiB: it fits as bfloat16"
    monkeypatch.setattr(describe, "available_memory", lambda: 10_000)
    shown = lines(run("info", model))
    assert shown["free memory"] == "9.8 KiB: it does not fit, not even as bfloat16"
    assert shown["longest step"] == "0 tokens; 1,024 unless asked for"


def test_a_gpu(run, model, monkeypatch):
    monkeypatch.setattr(describe, "_gpu_memory", lambda: ("H200", 5 << 30, 9 << 30))
    facts = json.loads(run("info", model, "--json").out)
    fits = {"bfloat16": True, "float32": True}
    assert facts["gpu"] == {"name": "H200", "memory_bytes": 9 << 30, "memory_free_bytes": 5 << 30, "fits": fits}
    assert lines(run("info", model))["gpu"] == "H200, 5.0 GiB free: it fits as bfloat16 and as float32"


def test_a_weights_file_without_a_tokenizer(run):
    (path,) = (GOLDEN / "rwkv7-tiny-official").glob("*.pth")
    shown = lines(run("info", path))
    assert shown["architecture"] == "rwkv7: RWKV-7, official layout"
    assert shown["state per sequence"] == "99.0 KiB, in each layer att_shift 128, wkv 2x64x64, ffn_shift 128"
    assert "tokenizer" in shown["problem"] and "heads" not in shown


def test_in_parts(run, tmp_path):
    for part, names in enumerate((["a"], ["b", "c"]), start=1):
        (tmp_path / f"model-0000{part}-of-00002.safetensors").write_text(" ".join(names))
    done = run("info", ".")
    assert done.code == 1 and done.err.count("\n") == 1 and "model-00001-of-00002.safetensors is damaged" in done.err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no weights"),
        ({"a.pth": "x", "b.pth": "x"}, "has 2 checkpoints: a.pth, b.pth; name the one to read"),
        ({"config.json": '{"model_type": "rwkv6"}', "model.safetensors": "x"}, "model.safetensors is damaged"),
        ({"model-00002-of-00002.safetensors": "x"}, "lacks 1 of the 2 parts of its weights: model-00001-of-00002.safetensors"),
    ],
)
def test_what_the_loader_refuses(run, tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = run("info", ".")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith("runnel: error: ") and message in done.err


def test_a_model_that_reads_passages(run, tmp_path):
    tiny_encoder(tmp_path / "tiny").save(tmp_path / "model")
    done = run("info", tmp_path / "model")
    shown = lines(done)
    wanted = "none: reads documents in passages of 12 tokens, a short text of up to 22 tokens as one"
    assert shown["state per sequence"] == wanted and "attention in a text of 12 tokens" in done.out
    assert "states that fit" not in shown and "VectorScore" in done.out
    facts = json.loads(run("info", tmp_path / "model", "--json").out)
    assert (facts["recurrent"], facts["max_tokens"], facts["passage_tokens"]) == (False, 22, 12)


def test_a_head_for_other_features_is_refused(run, tmp_path):
    tiny_encoder(tmp_path / "tiny").save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["runnel"]["heads"]["sentences"]["features"] -= 2
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    done = run("find", "a dog", "--model", tmp_path / "model", tmp_path / "model" / "README.md")
    few, now = FEATURES - 2, FEATURES
    assert (
        done.code == 2
        and f"takes {few} features per sentence, this version of runnel computes {now}; use the version" in done.err
    )


def test_a_transformer(run, tmp_path):
    pytest.importorskip("transformers")
    from helpers.tiny_transformers import write_transformer

    write_transformer(tmp_path, "bert")
    done = run("info", tmp_path)
    shown = lines(done)
    assert shown["architecture"] == "transformer: BERT, transformers layout"
    assert shown["state per sequence"] == "none: reads a text only as a whole, at most 40 tokens"
    assert "num_attention_heads 4" in shown["config"] and "output encoder" in shown["config"]
    assert "states that fit" not in shown and shown["free memory"].endswith("it fits as bfloat16 and as float32")
    facts = json.loads(run("info", tmp_path, "--json").out)
    assert (facts["recurrent"], facts["max_tokens"], facts["states_that_fit"], facts["state"]) == (False, 40, None, {})


def test_an_index_is_no_model(run, tmp_path):
    (tmp_path / "a.txt").write_text("The river was low.")
    assert run("index", "a.txt", "--to", "texts").code == 0
    done = run("info", "texts")
    assert (done.code, done.out) == (1, "")
    assert "error: texts is an index, not a model; `runnel search QUERY --in texts` searches it" in done.err
    assert run("index", "--check", "--to", "texts").out == "texts: 1 document, 1 passage, none damaged\n"
