"""`runnel lab mine`: what it writes, work that was stopped, and bad input."""

import json

import numpy as np
import pytest
from helpers.files import read_rows, write_files, write_rows
from helpers.judged_tasks import ToyEmbedder

from runnel.lab.training.mining import Mining, mine_negatives
from runnel.lab.training.triples import read_triples

COLORS = ("red", "blue")
PAIRS = [
    f"where is the {c} cat number {n},the {c} cat sits on chair {n}"
    for n in range(20)
    for c in COLORS
]


@pytest.fixture
def pairs(tmp_path):
    write_rows(tmp_path / "pairs.csv", ["query,positive", *PAIRS])
    return "lab", "mine", "pairs.csv", "--to", "out.jsonl"


@pytest.fixture
def beir(tmp_path):
    documents = [f"document {n} about {'cats' if n % 2 else 'dogs'} and {n}" for n in range(12)] + [
        " "
    ]
    write_files(
        tmp_path / "beir",
        {
            "corpus.jsonl": [{"_id": f"d{n}", "text": text} for n, text in enumerate(documents)],
            "queries.jsonl": [{"_id": "1", "text": "cats"}, {"_id": "2", "text": "dogs"}],
            "qrels/test.tsv": "query-id\tcorpus-id\tscore\n1\td1\t1\n2\td0\t1\n2\td2\t0\n",
        },
    )
    return "lab", "mine", "beir", "--to", "out.jsonl"


class JudgingEmbedder(ToyEmbedder):
    """Tells cats from dogs, and remembers (query prompt, document prompt) when
    queries were read.
    """

    def __init__(self):
        super().__init__()
        self.prompted = []

    def encode_query(self, texts, max_tokens=None):
        self.prompted.append((self.model.prompts.get("query"), self.model.prompts.get("document")))
        return super().encode_query(texts)


@pytest.fixture
def embedder(monkeypatch):
    embedder = JudgingEmbedder()
    monkeypatch.setattr("runnel.models.embedder.Embedder.load", lambda name: embedder)
    return embedder


def test_negatives_for_a_csv_of_pairs(run, pairs, tmp_path):
    facts = json.loads(run(*pairs, "--number", 3, "--ranks", "1-10", "--json").ok().out)
    assert (facts["examples"], facts["drawn"], facts["examples_with_fewer"]) == (40, 120, 0)
    assert (
        facts["ranks"] == [1, 10]
        and facts["model"] == "bm25"
        and facts["dropped"] == facts["contaminated"] == {}
    )
    found = list(read_triples(tmp_path / "out.jsonl"))
    assert [(t.query, t.positives) for t in found] == [
        (t.query, t.positives) for t in read_triples(tmp_path / "pairs.csv")
    ]
    for triple in found:
        assert len(set(triple.negatives)) == 3 and not set(triple.positives) & set(triple.negatives)
        _, _, _, color, *_, number = triple.query.split()  # one of which the ten best have
        assert all(color in text or text.endswith(f" {number}") for text in triple.negatives)
    assert sorted(p.name for p in tmp_path.glob("out*")) == ["out.jsonl", "out.jsonl.json"]
    in_python = mine_negatives("pairs.csv", tmp_path / "python.jsonl", Mining(3, (1, 10)))
    assert facts == {"out": "out.jsonl", **in_python}
    assert read_rows(tmp_path / "python.jsonl") == read_rows(tmp_path / "out.jsonl")


def test_beir_folder_with_judged_negatives(run, beir, tmp_path):
    done = run(*beir, "-n", 6)
    assert "warning: 2 of 2 examples got fewer than 6 negatives" in done.err
    assert (
        "note: candidates refused: 2 a positive or a copy of one; 1 a copy of another negative"
        in done.err
    )
    first, second = read_rows(tmp_path / "out.jsonl")
    assert first["id"] == "1" and first["pos"] == ["document 1 about cats and 1"]
    assert sorted(first["neg"]) == [f"document {n} about cats and {n}" for n in (11, 3, 5, 7, 9)]
    assert second["neg"][0] == "document 2 about dogs and 2" and len(second["neg"]) == 5


def test_an_embedder_searches_and_judges(run, beir, tmp_path, embedder):
    prompts = ("--prompt", "find: ", "--document-prompt", "text: ")
    margin = ("--relative-margin", 0.1)
    done = run(*beir, "-n", 4, "--model", "toy", *margin, "--ranks", "1-12", *prompts).ok()
    assert " scored like a positive" in done.err
    first, second = read_rows(tmp_path / "out.jsonl")
    assert all("dogs" in text for text in first["neg"]) and all(
        "cats" in text for text in second["neg"][1:]
    )
    assert embedder.read == 12  # the document without text is left out
    assert np.load(tmp_path / "out.jsonl.vectors.npy").shape == (12, 4)
    facts = json.loads((tmp_path / "out.jsonl.json").read_text())
    assert set(embedder.prompted) == {("find: ", "text: ")}
    assert facts["prompts"] == {"query": "find: ", "document": "text: "}
    run(*beir[:-1], "bm25.jsonl", *margin).refused("--relative-margin")


def test_bm25_settings_and_the_examples_instructions(run, beir, tmp_path):
    lines = [
        {"query": "cats", "pos": "about cats", "prompt": "find"},
        {"query": "dogs", "pos": "about dogs and dogs"},
    ]
    write_rows(tmp_path / "data.jsonl", lines)
    facts = json.loads(
        run(
            "lab", "mine", "data.jsonl", "--to", "out.jsonl", "--k1", 4.46, "--b", 0.82, "--json"
        ).out
    )
    assert (facts["k1"], facts["b"]) == (4.46, 0.82)
    assert [row.get("prompt") for row in read_rows(tmp_path / "out.jsonl")] == ["find", None]
    assert [t.instruction for t in read_triples(tmp_path / "out.jsonl")] == ["find", ""]


def test_a_run_in_place_of_a_search(run, beir, tmp_path):
    (tmp_path / "run.trec").write_text(
        "".join(f"1 Q0 d{n} {n} {-n} x\n" for n in range(12)) + "2 Q0 d5 1 1 x\n"
    )
    done = run(*beir, "-n", 2, "--run", "run.trec", "--ranks", "4-5")
    assert done.code == 0 and "1 of 2 examples got fewer than 2 negatives" in done.err
    first, second = read_rows(tmp_path / "out.jsonl")
    assert sorted(first["neg"]) == ["document 3 about cats and 3", "document 4 about dogs and 4"]
    assert second["neg"] == ["document 2 about dogs and 2"]
    (tmp_path / "run.trec").write_text("1 Q0 d3 1 1 x\n1 Q0 d99 2 0 x\n")
    assert (
        "query '1' ('cats'): "
        in (wrong := run(*beir, "--run", "run.trec", "--to", "other.jsonl").err)
        and "'d99'" in wrong
    )
    write_rows(tmp_path / "pairs.csv", ["query,positive", "dogs,document 2 about dogs and 2"])
    assert (
        "query '' ('dogs'): expected an id"
        in run("lab", "mine", "pairs.csv", "--to", "o.jsonl", "--run", "run.trec").err
    )


def test_test_sets_are_kept_out(run, pairs, tmp_path):
    (tmp_path / "test.csv").write_text(
        "query,positive\nWhere is the RED cat number 3?,x\nother,The blue cat sits on chair 19.\n"
    )
    done = run(*pairs, "--exclude", "test.csv")
    assert done.code == 0 and "38 examples" in done.out
    assert "note: left out: 1 query in a test set; 1 positive in a test set" in done.err
    assert not {"where is the red cat number 3", "where is the blue cat number 19"} & {
        row["query"] for row in read_rows(tmp_path / "out.jsonl")
    }
    run("lab", "mine", "pairs.csv", "--to", "all.jsonl", "--exclude", "pairs.csv").refused(
        "no example is left to mine for"
    )
