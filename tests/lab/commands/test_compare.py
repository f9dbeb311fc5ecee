"""`runnel lab compare`: means and spread of repeats, groups, the plot, and bad input."""

import json

import pytest
from helpers.files import write_rows


def result(folder, recall, *, queries=4, task="evidence", **groups):
    return write(
        folder, task, [{"Recall@5": recall, "P@5": 0.1}] * queries, {"kind": "sentences"} | groups
    )


def write(folder, task, values, found):
    write_rows(folder / f"{task}.json", [{"version": 1, "task": task} | found])
    write_rows(
        folder / f"{task}.queries.jsonl",
        [{"query": str(number), **row} for number, row in enumerate(values)],
    )
    return str(folder)


def groups(recall):
    return {
        "by_length": [
            {"name": "up to 500 words", "queries": 2, "metrics": {"Recall@5": recall, "P@5": 0.0}}
        ],
        "recall_by_position": [
            {"from": 0.1, "to": 0.2, "spans": 3, "metrics": {"Recall@1": 0.0, "Recall@5": recall}}
        ],
    }


def test_repeats_have_a_mean_and_a_spread_in_one_table_and_one_plot(run, tmp_path, monkeypatch):
    drawn = {}
    draw = lambda axis, x, y, yerr, **more: drawn.update({more["label"]: (x, y, yerr)})  # noqa: E731
    monkeypatch.setattr("matplotlib.axes.Axes.errorbar", draw)
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda axis, **more: None)
    seeds = [
        f"full={result(tmp_path / str(seed), recall, **groups(recall))}"
        for seed, recall in enumerate((0.5, 0.7, 0.9))
    ]
    alone = f"alone={result(tmp_path / 'alone', 0.25)}"
    done = run("lab", "compare", *seeds, alone, "--to", str(tmp_path / "out")).ok()
    lines = [" ".join(line.split()) for line in done.out.splitlines() if line.strip()]
    assert lines[0] == "task value number full alone" and lines[2:] == [
        "evidence Recall@5 4 0.7000 ± 0.2000 0.2500",
        "evidence P@5 4 0.1000 ± 0.0000 0.1000",
        "evidence Recall@5, up to 500 words 2 0.7000 ± 0.2000 –",
        "evidence Recall@5, evidence at 10% to 20% 3 0.7000 ± 0.2000 –",
    ]
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"]
    assert rows[0]["systems"]["full"] == pytest.approx(
        {"repeats": 3, "mean": 0.7, "deviation": 0.2, "min": 0.5, "max": 0.9}
    )
    assert rows[0]["systems"]["alone"] == {
        "repeats": 1,
        "mean": 0.25,
        "deviation": 0.0,
        "min": 0.25,
        "max": 0.25,
    }
    places, means, bars = drawn["full"]
    assert [round(place) for place in places] == [0, 1, 2, 3] and means == pytest.approx(
        [0.7, 0.1, 0.7, 0.7]
    )
    assert bars[0][0] == pytest.approx(0.2) == bars[1][0] and len(drawn["alone"][0]) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.json",
        "comparison.png",
    ]


def test_answers_and_tasks_that_some_lack(run, tmp_path):
    scores = {
        "kind": "qa",
        "by_length": [{"name": "up to 4,000 tokens", "questions": 3, "accuracy": 0.4, "F1": None}],
    }
    one = write(tmp_path / "bm25", "qasper", [{"accuracy": 1.0}, {"accuracy": 0.0}], scores)
    result(tmp_path / "bm25", 0.1, task="other")
    two = write(tmp_path / "x", "qasper", [{"accuracy": 1.0}, {"accuracy": 0.5}], scores)
    command = ("lab", "compare", one, f"x={two}", "--to", str(tmp_path / "out"))
    assert "95 % interval" in run(*command).out
    done = run(*command, "--json")
    rows = json.loads(done.out)["rows"]
    assert (
        rows[2]["number"] == rows[2]["comparison"]["queries"] == 2
        and rows[2]["comparison"]["difference"] == 0.25
    )
    shown = [
        (row["task"], row["value"], {name: one["mean"] for name, one in row["systems"].items()})
        for row in rows
    ]
    assert done.code == 0 and shown == [
        ("other", "Recall@5", {"bm25": 0.1}),
        ("other", "P@5", {"bm25": 0.1}),
        ("qasper", "accuracy", {"bm25": 0.5, "x": 0.75}),
        ("qasper", "accuracy, up to 4,000 tokens", {"bm25": 0.4, "x": 0.4}),
    ]
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torn"], "torn/evidence.json is damaged"),
        (["a=4", "b=5"], "evidence: the results are of different queries (4 of a, 5 of b)"),
        (["4", "other"], "no task in common"),
    ],
)
def test_bad_results(run, tmp_path, arguments, message):
    for name, more in (("4", {}), ("5", {"queries": 5}), ("torn", {}), ("other", {"task": "x"})):
        result(tmp_path / name, 0.5, **more)
    (tmp_path / "torn" / "evidence.json").write_text('{"task": "evid')
    done = run("lab", "compare", *arguments, "--to", "out")
    assert done.code == 1 and message in done.err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a", "b"), ("b", "a", "a"), ("a", "b")])
def test_results_with_equally_many_queries_that_differ(run, tmp_path, names):
    """Also where the last repeat of a name has the queries of the other results."""
    arguments = []
    for number, name in enumerate(names):
        place = tmp_path / str(number)
        result(place, 0.5)
        if number == names.index("a"):
            others = [{"query": f"other {i}", "Recall@5": 0.5} for i in range(4)]
            write_rows(place / "evidence.queries.jsonl", others)
        arguments.append(f"{name}={place}")
    done = run("lab", "compare", *arguments)
    message = f"of different queries ({', '.join(f'4 of {name}' for name in names)})"
    assert done.code == 1 and message in done.err
