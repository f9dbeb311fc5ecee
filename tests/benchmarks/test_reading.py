"""Reading documents: batches, the work counted, the best batch, and what is kept of an interrupted
command.
"""

import json
from functools import partial

import pytest

from benchmarks.__main__ import main
from benchmarks.padding import ssd_flops, standard_flops
from benchmarks.reading import measure, read_documents, work
from benchmarks.shapes import describe_subject
from benchmarks.speed import Settings
from runnel.backbones.checkpoint.load import meta_backbone
from runnel.backbones.mamba2.model import Mamba2Config

COUNTS = [
    "linear layers, recurrence, attention",
    "2 x parameters, attention",
    "2 x parameters, SSD in chunks of 256",
]


@pytest.mark.parametrize(
    ("model", "tflop", "billions"), [("mamba2-130m", 19.0, 0.1), ("mamba2-1.3b", 197.9, 1.3)]
)
def test_table_2_of_the_scanner_paper(model, tflop, billions):
    """Both are 2 x parameters for 73,640 tokens; a batch of one text needs no padding."""
    found = work(model, read_documents("1x73640"), 1)
    flops = found["flops"]["2 x parameters, attention"]
    assert flops["packed"] == flops["padded"] == pytest.approx(tflop * 1e12, abs=0.05e12)
    assert found["parameters"] / 1e9 == pytest.approx(billions, abs=0.05)
    assert list(found["flops"]) == COUNTS


def test_the_work_of_chunks_of_ssd_and_of_padding():
    """Each term of Dao and Gu's block form, for 1 layer of 4 heads of 16, states of 16, 2 groups,
    one chunk of 10 tokens.
    """
    backbone = meta_backbone(
        "mamba2", Mamba2Config(64, 32, 1, state_size=16, head_size=16, groups=2)
    )
    q = 10
    heads = 4
    states = 4 * 16 * 16
    products = q * q * 2 * 16 + q * q * heads * 16 + 2 * q * states
    assert ssd_flops(backbone, q) == standard_flops(backbone, q) + 2 * (products + states)
    grown = ssd_flops(backbone, 4096) / ssd_flops(backbone, 512)
    assert grown == pytest.approx(8)  # linear in the text: chunks stay at 256 tokens
    found = work("bert-base", ((10, 20, 40), (5,)), 2)
    flops = found["flops"]["2 x parameters, attention"]
    count = partial(standard_flops, describe_subject("bert-base"))
    assert flops == {
        "packed": sum(map(count, (10, 20, 40, 5))),
        "padded": 2 * count(20) + count(40) + count(5),
    }
    assert found["tokens"] == 75 and COUNTS[2] not in found["flops"]


def seconds(request):
    """Reading takes a millisecond a token and a second a batch."""
    tokens = sum(map(sum, request["batches"]))
    return {"seconds": tokens / 1000 + len(request["batches"]), "peak_bytes": 1 << 20}


def test_the_fastest_batch_is_best(fake_workers):
    fake_workers.answers = {"runnel": {"read": seconds}}
    rows = measure(
        Settings(("tiny",), ()), "tiny", ((100,), (50,), (200,)), 80, [1, 2, 4], lambda said: None
    )["reading"]
    assert [(row["batch"], row["best"]) for row in rows] == [(1, False), (2, False), (4, True)]
    assert [row["seconds"]["median"] for row in rows] == pytest.approx([3.21, 2.21, 1.21])
    assert {
        (row["documents"], row["texts"], row["tokens"], row["longest"], row["cut"]) for row in rows
    } == {(3, 3, 210, 80, 80)}


def test_an_interrupted_command_measures_only_the_rest(fake_workers, tmp_path, capsys):
    command = ["read", "tiny", "--documents", "4x100", "--cut", "64", "32", "--to", str(tmp_path)]

    def interrupted(request):
        if request["batches"][0][0] == 32:
            raise KeyboardInterrupt
        return seconds(request)

    fake_workers.answers = {"runnel": {"read": interrupted}}
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert list(json.loads((tmp_path / "reading.json").read_text())["parts"]) == ["tiny, 64"]
    fake_workers.answers = {"runnel": {"read": seconds}}
    fake_workers.asked.clear()
    assert main(command) == 0
    assert {request["batches"][0][0] for _, op, request in fake_workers.asked if op == "read"} == {
        32
    }
    text = (tmp_path / "reading.md").read_text()
    assert "| tiny | runnel | bf16 | 64 | 8 | 1.26 (1.26–1.26) | 1,256.0 | 0.80 | 204 | 1 |" in text
    assert (tmp_path / "reading.png").stat().st_size > 1000 and text.count(
        "2 x parameters, attention"
    ) == 2
    for other, named in (
        ([*command, "--rounds", "1"], "rounds 3, now 1"),
        ([*command[:3], "4x99", *command[4:]], "documents "),
    ):
        assert (
            main(other) == 1
            and f"reading.json was measured with {named}" in capsys.readouterr().err
        )
