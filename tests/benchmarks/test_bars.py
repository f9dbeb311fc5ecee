"""The bars: which are lost, and that an unmeasured bar does not count as held."""

import pytest

from benchmarks import bars
from benchmarks.__main__ import main
from benchmarks.bars import BARS, bar_values, check_bars, rows

ROOFLINES = ("mamba2-130m", "mamba-130m", "rwkv7-0.1b", "xlstm-scaled")


def point(
    model, system, rate, *, batch=1, tokens=2048, dtype="bf16", share=None, outcome="ok", note=""
):
    shown = None if rate is None else {"median": rate, "min": rate, "max": rate, "runs": 3}
    return {
        "model": model,
        "system": system,
        "dtype": dtype,
        "batch": batch,
        "tokens": tokens,
        "tokens_per_s": shown,
        "of_roofline": None if share is None else {"median": share},
        "outcome": outcome,
        "note": note,
        "peak_bytes": None,
    }


POINTS = [
    *(point(model, "runnel", 3000.0, share=0.8) for model in ROOFLINES),
    point("mamba2-130m", "runnel", 1000.0, dtype="fp32", share=0.9),
    point("mamba2-130m", "runnel", 5000.0, dtype="int8", share=1.3),
    point("mamba2-130m", "runnel", 4000.0, tokens=8192, share=0.8),
    point("mamba2-130m", "runnel", 3600.0, tokens=64, batch=128, share=0.8),
    point("mamba2-130m", "transformers", 250.0, dtype="fp32"),
    point("mamba2-130m", "llama.cpp", 600.0, dtype="q8_0"),
    point("mamba2-130m", "llama.cpp", 900.0),
]
LONG = [
    point("pocket-mamba2", "runnel", 50000.0, tokens=8192) | {"peak_bytes": 400},
    point("pocket-mamba2", "runnel", 49000.0, tokens=262144) | {"peak_bytes": 404},
    point("mamba2-130m", "runnel", 4000.0, tokens=8192) | {"peak_bytes": 800},
    point("mamba2-130m", "runnel", 4000.0, tokens=262144) | {"peak_bytes": 800},
]
RERANKED = [
    {"way": "whole pairs", "over_whole": {"median": 1.0}},
    {"way": "fp32 states", "over_whole": {"median": 19.0}},
]


def values(**changes):
    given = {
        "points": POINTS,
        "long": LONG,
        "long_note": "",
        "reranked": RERANKED,
        "skipped": [],
    } | changes
    return bar_values(**given)


def by_key(found):
    return dict(zip(BARS, rows(found), strict=True))


def test_values():
    found = values()
    expected = {"transformers": 12.0, "short": 0.9, "remembered": 19.0, "int8": 1.3}
    expected |= {f"roofline {model}": 0.8 for model in ROOFLINES}
    # of its best dtype, and of the worst model
    expected |= {"llama.cpp": 3000 / 900, "memory": 1.01, "long": 0.98}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert not any(row.lost for row in rows(found | {"help": 0.2}))


@pytest.mark.parametrize("key", [key for key in BARS if not key.startswith("gpu")])
def test_each_bar_can_be_lost_and_held(key):
    bar = BARS[key]
    worse, better = (1.01, 0.99) if bar.at_most else (0.99, 1.01)
    lost, held = (by_key({key: bar.bound * factor})[key] for factor in (worse, better))
    assert (lost.lost, lost.verdict, lost.shown) == (
        True,
        "fails by 1.0%",
        f"{bar.bound * worse:.3g}",
    )
    assert (held.lost, held.verdict) == (False, "holds")
    assert not by_key({key: bar.bound})[key].lost
    if bar.target is not None:
        assert (
            by_key({key: bar.target})[key].verdict
            == f"holds, as does {'<=' if bar.at_most else '>='} {bar.target:g}"
        )


def test_what_is_missing_is_named_and_what_failed_loses_its_bar():
    points = [p for p in POINTS if p["system"] != "llama.cpp"]
    skipped = [{"system": "llama.cpp", "kind": "missing", "reason": "llama_cpp is not installed"}]
    row = by_key(values(points=points, skipped=skipped))["llama.cpp"]
    assert (row.lost, row.shown) == (False, "llama_cpp is not installed")
    broken = [
        LONG[0],
        LONG[1] | {"tokens_per_s": None, "outcome": "out of memory", "note": "killed"},
    ]
    for key, changes in {
        "roofline rwkv7-0.1b": {"points": []},
        "memory": {"long": [], "long_note": "it fell over"},
        "long": {"long": broken},
        "remembered": {"reranked": [{"way": "", "over_whole": None, "note": "no head"}]},
    }.items():
        assert by_key(values(**changes))[key].lost, key
    wrong = {"outcome": "wrong", "note": "differs", "tokens_per_s": None, "of_roofline": None}
    for system, key in (
        ("transformers",) * 2,
        ("llama.cpp",) * 2,
        ("runnel", "roofline mamba2-130m"),
    ):
        row = by_key(values(points=[p | wrong if p["system"] == system else p for p in POINTS]))[
            key
        ]
        assert (row.lost, row.value, row.verdict) == (
            True,
            None,
            "fails",
        ) and "differs" in row.shown


def test_the_whole_check(fake_workers, monkeypatch, capsys):
    """All bars from processes that answer at once: four times the linear layers' time, so every
    roofline is lost.
    """
    monkeypatch.setattr(bars, "help_seconds", lambda: 0.1)
    monkeypatch.setattr(bars, "has_native_bf16", lambda: True)
    skipped = [{"system": "llama.cpp", "kind": "missing", "reason": "-"}]
    monkeypatch.setattr(bars, "absent", lambda settings: (("transformers",), skipped))
    found = dict(zip(BARS, check_bars(lambda message: None), strict=True))
    lost = {key for key, row in found.items() if row.lost}
    assert lost == {*(f"roofline {model}" for model in ROOFLINES), "transformers", "int8"}
    assert found["remembered"].value == 20.0 and found["memory"].value == 1.0
    assert [round(found[key].value, 3) for key in ("indexing", "first stage", "search")] == [
        0.95,
        10.0,
        200.0,
    ]
    assert {request["tokens"] for _, op, request in fake_workers.asked if op == "peak"} == {
        8192,
        262144,
    }
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert f"| {BARS['help'].what} | <= 0.3 | 0.1 | holds |" in out and out.count("| fails") == len(
        lost
    )
    assert f"| {BARS['llama.cpp'].what} | >= 3 | - | not measured |" in out
    monkeypatch.setattr(
        bars, "check_bars", lambda progress: [row for row in found.values() if not row.lost]
    )
    assert main(["check"]) == 0
