"""`python -m benchmarks`: what it calls, prints and writes, and its exit codes."""

import json

from benchmarks import compare
from benchmarks.__main__ import main


def test_compare(fake_workers, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: True)
    fake_workers.answers = {"transformers": {"first": {"refused": "it has none"}}}
    what = (
        "compare tiny --tokens 64 --texts 1 2 --dtypes bf16 fp32 --with transformers bert --memory"
        " --remembered"
    )
    assert main([*what.split(), "--to", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| tiny | runnel | bf16 | 2 x 64 | 1,000 (1,000–1,000) |" in out
    # ours over this
    assert "| tiny | linear layers | bf16 | 2 x 64 | 4,000 (4,000–4,000) | 0.25 |" in out
    assert "- transformers, tiny: it has none" in out
    assert "| tiny | fp32 states | 5.00 (5.00–5.00) | 20.0 |" in out
    assert list(json.loads((tmp_path / "comparison.json").read_text())["parts"]) == ["tiny"]
    assert (tmp_path / "comparison.png").stat().st_size > 1000 and (
        tmp_path / "comparison.md"
    ).read_text() == out
    fake_workers.started.clear()
    assert main([*what.split(), "--to", str(tmp_path)]) == 0 and not fake_workers.started


def test_train(fake_workers, tmp_path, capsys):
    command = [*"train tiny --texts 1 2 --tokens 16 --lora 0 4 --to".split(), str(tmp_path)]
    fake_workers.answers = {"runnel": {"train": {"error": "lost", "kind": "KeyError"}}}
    assert main(command) == 1 and not (tmp_path / "training.json").exists()  # it is measured again
    fake_workers.answers = {}
    fake_workers.started.clear()
    assert main(command) == 0
    parts = json.loads((tmp_path / "training.json").read_text())["parts"]
    assert {
        key: [(row["batch"], row["outcome"], row["lora"]) for row in part["training"]]
        for key, part in parts.items()
    } == {
        "tiny, runnel, all weights": [(1, "ok", None), (2, "ok", None)],
        "tiny, runnel, 4": [(1, "ok", 4), (2, "ok", 4)],
    }
    assert [spec.lora for spec in fake_workers.started if spec.cold] == [None, None, 4, 4]
    assert "| tiny | runnel, LoRA of rank 4 | 1,000, 1 MiB |" in capsys.readouterr().out
    assert (tmp_path / "training.png").stat().st_size > 1000
