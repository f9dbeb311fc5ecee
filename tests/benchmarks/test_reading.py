"""Reading documents: batches, the work counted, the best batch, and what is kept of an interrupted command."""

import json
import re

import pytest

from benchmarks.__main__ import main
from benchmarks.kept import failures
from benchmarks.reading import batches, cut, lengths_of, measure, read_documents, work
from benchmarks.shapes import describe_subject
from benchmarks.speed import Settings
from runnel.errors import InputError

COUNTS = ["linear layers, recurrence, attention", "2 x parameters, attention", "2 x parameters, SSD in chunks of 256"]


def test_documents(tmp_path):
    assert read_documents("3x512") == ((512, 512, 512),)
    (tmp_path / "lengths").write_text("12\n\n 7 3 9 \n")
    assert read_documents(str(tmp_path / "lengths")) == ((12,), (7, 3, 9))
    assert cut(((12,), (7, 3, 9)), 7) == ((7,), (7, 3, 7)) and cut(((12,),), None) == ((12,),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12\nseven\n", "line 2: expected lengths in tokens, got 'seven'"),
        ("1.5", "line 1: expected lengths in tokens, got '1.5'"),
        ("0 2", "holds no lengths, or one of 0"),
        ("\n", "holds no lengths"),
    ],
)
def test_bad_lengths(tmp_path, text, message):
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(InputError, match=message):
        read_documents(str(tmp_path / "lengths"))
    with pytest.raises(InputError, match="nowhere: no such file; give a file of lengths in tokens"):
        read_documents("nowhere")


def test_pieces_of_different_documents_are_not_mixed():
    assert batches(((5,), (9, 1, 4), (2,), (7,)), 2) == [[2, 5], [7], [1, 4], [9]]
    assert batches(((5,),), 32) == [[5]]


@pytest.mark.parametrize(("model", "tflop", "billions"), [("mamba2-130m", 19.0, 0.1), ("mamba2-1.3b", 197.9, 1.3)])
def test_table_2_of_the_scanner_paper(model, tflop, billions):
    """Both are 2 x parameters for 73,640 tokens; a batch of one text needs no padding."""
    found = work(model, read_documents("1x73640"), 1)
    flops = found["flops"]["2 x parameters, attention"]
    assert flops["packed"] == flops["padded"] == pytest.approx(tflop * 1e12, abs=0.05e12)
    assert found["parameters"] / 1e9 == pytest.approx(billions, abs=0.05)
    assert list(found["flops"]) == COUNTS


def test_the_work_of_chunks_of_ssd():
    """Each term of Dao and Gu's block form, for 1 layer of 4 heads of 16, states of 16, 2 groups, one chunk of 10 tokens."""
    from benchmarks.padding import ssd_flops
    from runnel.backbones.checkpoint.load import meta_backbone
    from runnel.backbones.mamba2.model import Mamba2Config

    backbone = meta_backbone("mamba2", Mamba2Config(64, 32, 1, state_size=16, head_size=16, groups=2))
    q, heads, states = 10, 4, 4 * 16 * 16
    products = q * q * 2 * 16 + q * q * heads * 16 + 2 * q * states
    assert ssd_flops(backbone, q) == backbone.standard_flops(q) + 2 * (products + states)
    grown = ssd_flops(backbone, 4096) / ssd_flops(backbone, 512)
    assert grown == pytest.approx(8)  # linear in the text: chunks stay at 256 tokens


def test_padding_goes_by_batch_and_transformers_have_no_ssd():
    documents = ((10, 20, 40), (5,))
    found = work("bert-base", documents, 2)
    flops = found["flops"]["2 x parameters, attention"]
    count = describe_subject("bert-base").standard_flops
    assert flops == {"packed": sum(map(count, (10, 20, 40, 5))), "padded": 2 * count(20) + count(40) + count(5)}
    assert found["tokens"] == 75 and COUNTS[2] not in found["flops"]


# ---- measuring -----------------------------------------------------------------------------------------------------------


def timed(fake_workers, per_batch=1.0):
    """Reading takes a millisecond a token and `per_batch` seconds a batch."""

    def seconds(request):
        tokens = sum(map(sum, request["batches"]))
        return {"seconds": tokens / 1000 + per_batch * len(request["batches"]), "peak_bytes": 1 << 20}

    fake_workers.answers = {"runnel": {"read": seconds}}


def test_the_fastest_batch_is_best(fake_workers):
    timed(fake_workers)
    rows = measure(Settings(("tiny",), ()), "tiny", ((100,), (50,), (200,)), 80, [1, 2, 4], lambda said: None)["reading"]
    assert [(row["batch"], row["best"], row["seconds"]["median"]) for row in rows] == [
        (1, False, pytest.approx(3.21)),
        (2, False, pytest.approx(2.21)),
        (4, True, pytest.approx(1.21)),
    ]
    assert {(row["documents"], row["texts"], row["tokens"], row["longest"], row["cut"]) for row in rows} == {(3, 3, 210, 80, 80)}


def test_out_of_memory_is_a_result(fake_workers):
    full = {"out_of_memory": "cannot allocate"}
    fake_workers.answers = {
        "runnel": {"read": lambda request: full if len(request["batches"][0]) > 1 else {"seconds": 1.0, "peak_bytes": 5}}
    }
    rows = measure(Settings(("tiny",), ()), "tiny", ((9, 9, 9, 9),), None, [1, 2, 4], lambda said: None)["reading"]
    assert [(row["outcome"], row["note"], row["best"]) for row in rows] == [
        ("ok", "", True),
        ("out of memory", "cannot allocate", False),
        ("out of memory", "a smaller batch was", False),
    ]


def test_texts_that_a_transformer_cannot_read_are_left_out(fake_workers):
    """tiny-bert reads 512 tokens; that is a result, not a failure."""
    timed(fake_workers)
    part = measure(Settings(("tiny-bert",), ()), "tiny-bert", ((600,),), None, [1], lambda said: None)
    assert [(row["outcome"], row["note"]) for row in part["reading"]] == [("left out", "it reads at most 512 tokens")]
    assert failures(part) == [] and not any(op == "read" for _, op, _ in fake_workers.asked)
    part = measure(Settings(("tiny-bert",), ()), "tiny-bert", ((600,),), 512, [1], lambda said: None)
    assert [row["outcome"] for row in part["reading"]] == ["ok"]


def test_an_interrupted_command_measures_only_the_rest(fake_workers, tmp_path, monkeypatch, capsys):
    """The second cut is interrupted; the first is not measured again, and other settings are refused."""
    timed(fake_workers)
    command = ["read", "tiny", "--documents", "4x100", "--cut", "64", "32", "--to", str(tmp_path)]
    answer = fake_workers.answers["runnel"]["read"]

    def interrupted(request):
        if request["batches"][0][0] == 32:
            raise KeyboardInterrupt
        return answer(request)

    fake_workers.answers["runnel"]["read"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert list(json.loads((tmp_path / "reading.json").read_text())["parts"]) == ["tiny, 64"]
    fake_workers.answers["runnel"]["read"] = answer
    fake_workers.asked.clear()
    assert main(command) == 0
    assert {request["batches"][0][0] for _, op, request in fake_workers.asked if op == "read"} == {32}
    text = (tmp_path / "reading.md").read_text()
    assert "| tiny | runnel | bf16 | 64 | 8 | 1.26 (1.26–1.26) | 1,256.0 | 0.80 | 204 | 1 |" in text
    assert (tmp_path / "reading.png").stat().st_size > 1000 and text.count("2 x parameters, attention") == 2
    assert main([*command, "--rounds", "1"]) == 1
    assert "reading.json was measured with rounds 3, now 1; give another folder" in capsys.readouterr().err
    other = [*command[:3], "4x99", *command[4:]]
    assert main(other) == 1 and re.search(r"with documents \w{16}, now \w{16}; give", capsys.readouterr().err)


def test_a_failure_is_not_kept(fake_workers, tmp_path):
    fake_workers.answers = {"runnel": {"read": {"error": "it broke"}}}
    command = ["read", "tiny", "--documents", "2x8", "--to", str(tmp_path)]
    assert main(command) == 1
    timed(fake_workers)
    assert main(command) == 0


def test_counting_measures_nothing(fake_workers, capsys):
    assert main(["read", "mamba2-130m", "llama-3.1-70b", "--documents", "1x73640", "--texts", "1", "--count"]) == 0
    assert not fake_workers.started
    out = capsys.readouterr().out
    assert "| mamba2-130m | 0.13 | 73,640 | 1 | 2 x parameters, attention | 19 | 19 |" in out
    assert "| llama-3.1-70b | 69.50 | 73,640 | 1 |" in out


def test_tiny_models_for_real(real_jobs, tmp_path, capsys):
    command = "read tiny tiny-bert --documents 5x20 --cut 16 --texts 1 4 --rounds 1 --dtypes fp32 --to".split()
    assert main([*command, str(tmp_path)]) == 0
    rows = [row for part in json.loads((tmp_path / "reading.json").read_text())["parts"].values() for row in part["reading"]]
    assert [(row["model"], row["batch"], row["outcome"], row["tokens"]) for row in rows] == [
        ("tiny", 1, "ok", 80), ("tiny", 4, "ok", 80), ("tiny-bert", 1, "ok", 80), ("tiny-bert", 4, "ok", 80),
    ]  # fmt: skip
    assert all(row["seconds"]["min"] > 0 for row in rows)


def test_training_with_adapters_and_without(real_jobs, tmp_path, capsys):
    """The rows with adapters train them alone; resuming starts nothing."""
    command = ["train", "tiny", "--texts", "1", "2", "--tokens", "16", "--lora", "0", "4", "--rounds", "1", "--to", str(tmp_path)]
    assert main(command) == 0
    parts = json.loads((tmp_path / "training.json").read_text())["parts"]
    assert {key: [(row["batch"], row["outcome"], row["lora"]) for row in part["training"]] for key, part in parts.items()} == {
        "tiny, runnel, all weights": [(1, "ok", None), (2, "ok", None)],
        "tiny, runnel, 4": [(1, "ok", 4), (2, "ok", 4)],
    }
    assert "| tiny | runnel, LoRA of rank 4 | 2 |" in (tmp_path / "training.md").read_text()
    trained = [job.trainer._optimizer.param_groups[0]["params"] for job in real_jobs.jobs if job.trainer is not None]
    assert len(trained[-1]) < len(trained[0]) * 2 and {4} <= {min(p.shape) for p in trained[-1]}
    real_jobs.jobs.clear()
    assert main(command) == 0 and not real_jobs.jobs


def test_lengths_of_a_corpus(tmp_path, capsys):
    rows = [{"_id": "a", "text": "One sentence. And another one."}, {"_id": "b", "text": ""}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, pieces, chunks = (list(lengths_of("pocket", tmp_path, how)) for how in (None, "sentences", "2"))
    assert len(whole[0]) == 1 and len(pieces[0]) == 2 and len(chunks[0]) == 3
    assert whole[1] == pieces[1] == chunks[1] == []
    assert sum(pieces[0]) == whole[0][0]
    command = ["lengths", "pocket", str(tmp_path), "--pieces", "sentences", "--to", str(tmp_path / "lengths")]
    assert main(command) == 0 and read_documents(str(tmp_path / "lengths")) == (tuple(pieces[0]),)
    assert "1 documents with" in (err := capsys.readouterr().err) and "left out 1 without text" in err
    with pytest.raises(InputError, match="--pieces takes sentences, or a number of words from 1, got 'words'"):
        next(lengths_of("pocket", tmp_path, "words"))
