"""`python -m benchmarks`: what it calls, prints and writes, and its exit codes."""

import contextlib
import json

import pytest

from benchmarks import bars, compare, page, serving
from benchmarks.__main__ import main
from benchmarks.bars import BarResult


@pytest.mark.parametrize("lost", [False, True])
def test_check_prints_each_bar_with_its_value(monkeypatch, capsys, lost):
    verdict = "fails by 16.7%" if lost else "holds"
    found = [
        BarResult("speed over x", ">= 0.6", 0.5 if lost else 0.7, "", lost, verdict),
        BarResult("on a GPU", ">= 3", None, "no GPU here", False, "not measured"),
    ]
    monkeypatch.setattr(bars, "check_bars", lambda progress: found)
    assert main(["check"]) == int(lost)
    out = capsys.readouterr().out
    assert f"| speed over x | >= 0.6 | {0.5 if lost else 0.7} | {verdict} |" in out
    assert "| on a GPU | >= 3 | no GPU here | not measured |" in out


@pytest.mark.parametrize("written", [False, True])
def test_page(monkeypatch, tmp_path, written):
    asked = []
    monkeypatch.setattr(page, "write_page", lambda folder, progress: asked.append(folder) or written)
    monkeypatch.setattr(page, "write_section", lambda folder, name, progress: asked.append((folder, name)) or written)
    assert main(["page", str(tmp_path)]) == main(["page", str(tmp_path), "--only", "search"]) == int(not written)
    assert asked == [tmp_path, (tmp_path, "search")]


def test_a_page_needs_its_folder(capsys):
    assert main(["page", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("runnel: error: nowhere is not a folder")


def test_compare(fake_workers, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: True)
    ways = {"whole pairs": [10.0], "fp32 states": [0.5]}
    fake_workers.answers = {
        "runnel": {"rerank": {"seconds": ways, "agreement": dict.fromkeys(ways, 1.0)}},
        "transformers": {"first": {"refused": "it has none"}},
    }
    what = "compare tiny --tokens 64 --texts 1 2 --dtypes bf16 fp32 --with transformers bert --memory --remembered"
    assert main([*what.split(), "--to", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| tiny | runnel | bf16 | 2 x 64 | 1,000 (1,000–1,000) |" in out
    assert "- transformers, tiny: it has none" in out
    assert "| tiny | fp32 states | 5.00 | 20.0 |" in out
    assert list(json.loads((tmp_path / "comparison.json").read_text())["parts"]) == ["tiny"]
    assert (tmp_path / "comparison.png").stat().st_size > 1000 and (tmp_path / "comparison.md").read_text() == out
    fake_workers.started.clear()
    assert main([*what.split(), "--to", str(tmp_path)]) == 0 and not fake_workers.started


def test_train(fake_workers, capsys):
    full = {"out_of_memory": "cannot allocate"}
    fake_workers.answers = {
        "runnel": {"train": lambda request: full if request["batch"] == 2 else {"seconds": 1.0, "peak_bytes": 1 << 20}}
    }
    assert main("train tiny --texts 1 2 --lora 0 32 --with bert".split()) == 0
    out = capsys.readouterr().out
    assert "| tiny | runnel | 2 | out of memory: cannot allocate | – |" in out
    assert "| tiny | runnel, LoRA of rank 32 | 1 | 512 (512–512) | 1 |" in out and "| tiny | bert | 2 |" in out
    assert {spec.lora for spec in fake_workers.started} == {None, 32}
    fake_workers.answers["runnel"]["train"] = {"error": "it broke"}
    assert main(["train", "tiny"]) == 1
    assert main(["train", "tiny", "--to", "nowhere"]) == 1
    assert "nowhere is not a folder; create it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["compare"], ["page"], ["compare", "tiny", "--with", "vllm"], ["compare", "tiny", "--dtypes", "int3"]]
)
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_serve(monkeypatch, capsys):
    """The load itself is tested in tests/server/test_load.py."""

    async def measure(url, model, load, progress):
        return f"{url} {model} {load.long_tokens} {load.requests} {load.short_clients}"

    monkeypatch.setattr(serving, "server", lambda model: contextlib.nullcontext(f"http://{model}"))
    monkeypatch.setattr(serving, "measure", measure)
    monkeypatch.setattr("runnel.models.base.load_model", lambda name: name)
    assert main("serve --model tiny --long-tokens 7 --requests 3".split()) == 0
    assert capsys.readouterr().out == "http://tiny tiny 7 3 56\n"
