"""`python -m benchmarks results`: every system on small sets, interrupted work resumed, and the
page made of what is finished.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

from benchmarks import results
from benchmarks.__main__ import main
from benchmarks.results_page import page_text
from runnel.errors import InputError
from tools.train_pocket.data import held_back

WORDS = (
    "river sea mountain red cat blue bird green tree house old road winter snow paper letter king"
    " queen ship storm".split()
)


def text(number, words=30):
    rng = np.random.default_rng(zlib.crc32(str(number).encode()))
    return " ".join(rng.choice(WORDS, words)) + f" number{number}."


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "retrieval" / "tiny"
    write_lines(
        folder / "corpus.jsonl.zst",
        [{"_id": f"d{n}", "title": "", "text": text(n)} for n in range(12)],
    )
    write_lines(
        folder / "queries.jsonl.zst",
        [{"_id": f"q{n}", "text": " ".join(text(n).split()[-4:])} for n in range(5)],
    )
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(5))
    )
    for name, documents in (("new", 2), ("cuad", 20)):  # of cuad only what is held back is measured
        document = " ".join(text(f"{name}{n}", 6).capitalize() for n in range(8))
        first = document.index(".") + 1
        row = {"question": f"number{name}0", "document": document, "evidence": [[0, first]]}
        rows = [
            {"id": f"{d}-{n}", "doc_id": str(d), **row} for d in range(documents) for n in range(6)
        ]
        write_lines(tmp_path / "data" / "evidence" / f"{name}.jsonl.zst", rows)
    return tmp_path / "data"


@pytest.mark.slow
def test_results(data, tmp_path, monkeypatch):
    page = tmp_path / "page"
    work = tmp_path / "work"
    page.mkdir()
    evaluate = results.evaluate
    done = []
    stop = 4

    def counted(model, tasks, **options):
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(model)
        return evaluate(model, tasks, **options)

    monkeypatch.setattr(results, "evaluate", counted)
    command = ["results", str(data), str(work), str(page)]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    stop = None
    assert main(command) == 0
    # BM25's runs serve two parts each; the sum of two scores and each sentence alone are none of
    # `runnel lab evaluate`'s
    retrieval = 11 - 1
    sentences = 2 * 5
    assert len(done) == retrieval + sentences and not list(work.rglob("*.part"))
    found = json.loads((page / "results.json").read_text())
    assert [part["missing"] for part in found["parts"]] == [[]] * 5
    assert (page / "results.md").read_text() == page_text(found) and (
        page / "results.png"
    ).stat().st_size > 1000
    about = [work / "questions" / name / "pocket" for name in ("manuals", "other kinds")]
    rankings = [
        {"system": name, "metrics": {"MRR": [mean, 0.1, 0.9]}, "place": place, "kinds": {}}
        for place in ("document", "folder")
        for name, mean in (("p", 0.25), ("BM25", 0.125))
    ]
    asked = {"queries": 3, "unanswerable": 1, "documents": 2, "sentences": 9, "rankings": rankings}
    for folder in about:
        folder.mkdir(parents=True)
        (folder / "questions.json").write_text(json.dumps(asked))
    assert main(command) == 0 and len(done) == retrieval + sentences
    written = (page / "results.md").read_text()
    assert written.count("0.250 (0.10, 0.90)") == 2 * 2
    assert "| other kinds: pocket, all documents | 0.250 (0.10, 0.90) |" in written
    again = json.loads((page / "results.json").read_text())
    assert again.pop("questions") and found.pop("questions") == [] and again == found

    first, _, sentences_part, *recurrent = found["parts"]
    assert first["systems"][0]["sets"]["tiny"]["mean"] == 1.0  # each number is in one document
    values = {
        json.loads(line)["query"]
        for line in (work / "bm25" / "cuad.queries.jsonl").read_text().splitlines()
    }
    documents = {name.split("-")[0] for name in values}
    assert documents == {str(n) for n in range(20) if held_back(str(n))}
    assert len(values) == 4 * len(documents)
    assert sentences_part["sets"][0]["trained"] in ("no", "held back")
    titles = [[system["title"] for system in part["systems"]] for part in recurrent]
    assert titles == [["BM25", "whole documents", "each sentence alone"]] * 2

    # a part that an empty folder of work has not measured stays as the page has it
    kept = results.collect(data, results.Work(tmp_path / "empty"), again)
    assert kept["parts"] == again["parts"]


def test_what_depends_on_a_failed_system_is_not_measured(data, tmp_path, monkeypatch):
    """An index that is not finished holds some of the documents: a search of it would look like a
    bad result.
    """
    called = []

    def failing(model, tasks, **options):
        called.append(Path(options["out"]).name)
        if called[-1] in ("index", "embed"):
            raise InputError("out of order")

    monkeypatch.setattr(results, "evaluate", failing)
    monkeypatch.setattr(results, "minilm", lambda: Path("minilm"))
    for name in ("_fused", "_cosines"):
        monkeypatch.setattr(results, name, lambda *arguments: iter(()))
    (tmp_path / "work").mkdir()
    failed = results.measure(data, results.Work(tmp_path / "work"), ["tiny"], lambda line: None)
    waiting = {"index-vectors", "index-merged", "bm25+embed"}
    assert {line.split(": ")[0].removeprefix("tiny, ") for line in failed} == {
        "embed",
        "index",
        *waiting,
    }
    assert not waiting.intersection(called)


def test_the_sum_of_two_scores_is_of_z_scores_and_means_weigh_sets_alike(monkeypatch):
    scores = {"bm25": np.array([0.0, 0.0, 900.0]), "x": np.array([1.0, -1.0, 0.0])}
    monkeypatch.setattr(
        results, "scorer_of", lambda system: (lambda *_: ("spans", scores[system.model]), "f")
    )
    score, fingerprint = results._both(results.Scored("x", "embed"))
    spans, found = score("query", "document")
    half = 1 / np.sqrt(2)
    expected = np.array([-half, -half, 2 * half]) + np.array([1, -1, 0]) * np.sqrt(1.5)
    assert found == pytest.approx(expected, abs=1e-4) and (spans, fingerprint) == ("spans", "f")
    base = {"a": [0.0, 0.0, 0.0, 0.0], "b": [1.0]}
    cell = results._cell(["a", "b"], {"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0]}, base)
    assert (
        cell["mean"] == 0.75
        and cell["difference"] == 0.25
        and 0 <= cell["low"] < 0.25 < cell["high"] <= 0.5
    )


def test_the_published_page_is_what_its_json_says():
    docs = Path(results.__file__).parent.parent / "docs"
    assert (
        page_text(json.loads((docs / "results.json").read_text()))
        == (docs / "results.md").read_text()
    )
