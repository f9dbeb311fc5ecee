"""`runnel analyze`: means and spread of repeats, curves, plots, and bad input."""

import json

import pytest

from runnel.commands import analyze


def result(folder, recall, *, queries=4, task="evidence", **curves):
    """Write what `runnel evaluate --out` leaves in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"version": 1, "task": task, "kind": "sentences", "queries": queries, "metrics": {"Recall@5": recall, "P@5": 0.1}}
    (folder / f"{task}.json").write_text(json.dumps(found | curves))
    (folder / f"{task}.queries.jsonl").write_text("")
    return str(folder)


def curves(recall):
    """A result's curves; one system has evidence in two tenths, the other in one."""
    return {
        "by_length": [{"name": "up to 500 words", "queries": 4, "metrics": {"Recall@5": recall}}],
        "recall_by_position": [{"from": 0.1, "to": 0.2, "spans": 3, "metrics": {"Recall@1": 0.0, "Recall@5": recall}}],
        "precision_recall": [{"k": 1, "precision": 0.5, "recall": 0.1}, {"k": 10, "precision": 0.1, "recall": recall}],
        "calibration": [{"score": 1, "share": 0.9, "sigmoid": 0.8}, {"score": 0, "share": recall, "sigmoid": 0.6}],
    }


@pytest.fixture
def drawn(monkeypatch):
    """What `_with_range` draws: title of the line -> places and means."""
    found = []

    def keep(axis, places, values, label, line="-"):
        found.append((label, list(places), [value["mean"] for value in values]))
        draw(axis, places, values, label, line)

    draw = analyze._with_range
    monkeypatch.setattr(analyze, "_with_range", keep)
    return found


def test_repeats_have_a_mean_and_a_spread(run, tmp_path, drawn):
    seeds = [f"full={result(tmp_path / str(seed), recall, **curves(recall))}" for seed, recall in enumerate((0.5, 0.7, 0.9))]
    alone = f"alone={result(tmp_path / 'alone', 0.25, **curves(0.25))}"
    done = run("analyze", *seeds, alone, "--to", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "0.7000 ± 0.2000" in done.out and "0.2500 " in done.out and done.out.count("±") == 2
    (task,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["tasks"]
    full, other = task["systems"]
    assert (full["name"], full["repeats"], full["queries"], other["repeats"]) == ("full", 3, 4, 1)
    assert full["metrics"]["Recall@5"] == pytest.approx({"mean": 0.7, "deviation": 0.2, "min": 0.5, "max": 0.9})
    assert other["metrics"]["Recall@5"] == {"mean": 0.25, "deviation": 0.0, "min": 0.25, "max": 0.25}
    assert (tmp_path / "out" / "evidence.png").stat().st_size > 1000
    lines = {label: [(places, means) for name, places, means in drawn if name == label] for label, *_ in drawn}
    assert len(lines["full"]) == 5
    assert lines["full"][2] == ([pytest.approx(0.15)], [pytest.approx(0.7)])  # the greatest depth, in the middle of the tenth
    assert lines["full"][3] == ([pytest.approx(0.1), pytest.approx(0.7)], [pytest.approx(0.5), pytest.approx(0.1)])
    assert lines["full"][4][0] == [0.5, 1.5]  # scores rise


def test_systems_without_curves_and_tasks_that_some_lack(run, tmp_path):
    """BM25 has no calibration; a folder may have tasks that others have not."""
    one = result(tmp_path / "bm25", 0.5)
    result(tmp_path / "bm25", 0.1, task="other")
    done = run("analyze", one, f"x={result(tmp_path / 'x', 0.2, **curves(0.2))}", "--to", str(tmp_path / "out"), "--json")
    assert done.code == 0 and "note: x has no result of other" in done.err
    tasks = {task["task"]: [system["name"] for system in task["systems"]] for task in json.loads(done.out)["tasks"]}
    assert tasks == {"evidence": ["bm25", "x"], "other": ["bm25"]}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["analysis.json", "evidence.png", "other.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty"], "empty holds no results; give the folder of runnel evaluate --out"),
        (["torn"], "torn/evidence.json cannot be read as a result of runnel evaluate"),
        (["a=4", "a=5"], "evidence: the repeats of a have 4, 5 queries; evaluate all on the same questions"),
    ],
)
def test_bad_results(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result(tmp_path / "4", 0.5), result(tmp_path / "5", 0.5, queries=5)
    result(tmp_path / "torn", 0.5)
    (tmp_path / "torn" / "evidence.json").write_text('{"task": "evid')
    done = run("analyze", *arguments, "--to", "out")
    assert done.code == 1 and message in done.err and not (tmp_path / "out").exists()


def test_the_folder_of_the_output(run, tmp_path):
    done = run("analyze", result(tmp_path / "a", 0.5), "--to", str(tmp_path / "no" / "out"))
    assert done.code == 1 and "no does not exist; create it first" in done.err
