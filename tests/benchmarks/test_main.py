"""`python -m benchmarks`: what it calls, prints and writes, and its exit codes."""

import json

from benchmarks import compare
from benchmarks.__main__ import main


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
