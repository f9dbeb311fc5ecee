"""Rows for the libraries' trainers: which negatives, which prompts, which sentences; what is counted and refused."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset

from runnel.errors import InputError
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.recipes import DataSet, DataTable
from runnel.lab.training.tables import by_negatives, label_sentences, trained_prompts, write_triple_table
from runnel.text.sentences import split_sentences


def rows_of(tmp_path, lines, job="embed", one=None, prompts=None, **table):
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    guard = Decontaminator(table.get("exclude", ()))
    one, table = one or DataSet(str(source)), DataTable(**table)
    prompts = trained_prompts(table, prompts or {})
    rows = write_triple_table(tmp_path / "rows.arrow", source, one, table, job, 0, guard, prompts)
    assert isinstance(rows, Dataset) and not list(tmp_path.glob("*.partial"))
    return rows.to_list()


TRIPLES = [{"query": f"q{i}", "positive": f"p{i}", "negative": [f"n{i}{j}" for j in range(6)]} for i in range(5)]


def test_each_sample_has_negatives_of_its_own(tmp_path):
    rows = rows_of(tmp_path, TRIPLES, negatives=3, samples=2)
    assert len(rows) == 10 and list(rows[0]) == "query positive negative_1 negative_2 negative_3 negatives row".split()
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        drawn = [row[f"negative_{i}"] for row in (one, two) for i in (1, 2, 3)]
        assert len(set(drawn)) == 6 and {text[:2] for text in drawn} == {"n" + one["query"][1]}
    assert rows[2]["row"] == "data.jsonl: example 2 ('q1')"
    assert rows == rows_of(tmp_path, TRIPLES, negatives=3, samples=2)


def test_lists_for_a_reranker(tmp_path):
    (row, *_) = rows_of(tmp_path, TRIPLES, "rerank", negatives=2)
    assert row["docs"][0] == "p0" and set(row["docs"][1:]) < set(TRIPLES[0]["negative"])
    assert row["labels"] == [0.0, -np.inf, -np.inf]  # a softmax of these is 1, 0, 0
    assert torch.tensor(row["labels"]).softmax(0).tolist() == [1, 0, 0]


def test_rows_with_fewer_negatives_and_none(tmp_path, caplog):
    lines = [*TRIPLES, {"query": "q", "positive": "p"}, {"query": "r", "positive": "s", "negative": None}]
    rows = rows_of(tmp_path, lines, negatives=8)
    assert [row["negatives"] for row in rows] == [6] * 5 + [0] * 2
    assert len({rows[0][f"negative_{i}"] for i in range(1, 7)}) == 6 and rows[0]["negative_7"] is None
    assert "data.jsonl: of 7 rows, data.negatives = 8: 2 with 0, 5 with 6" in caplog.text


def test_samples_share_negatives_where_there_are_too_few(tmp_path, caplog):
    rows = rows_of(tmp_path, [*TRIPLES, {"query": "q", "positive": "p", "negative": ["n", "m"]}], negatives=2, samples=3)
    assert len(rows) == 18 and all(row["negative_1"] != row["negative_2"] for row in rows)
    assert "the 3 rows of 1 positives share negatives: there are fewer than data.negatives x data.samples = 6" in caplog.text


def test_a_reranker_needs_one_negative_at_least(tmp_path, caplog):
    rows = rows_of(tmp_path, [TRIPLES[0], {"query": "q", "positive": "p", "negative": ["n"]}], "rerank", negatives=2)
    assert [len(row["docs"]) for row in rows] == [len(row["labels"]) for row in rows] == [3, 2]
    assert "of 2 rows, data.negatives = 2: 1 with 1" in caplog.text
    with pytest.raises(InputError, match="'q'"):
        rows_of(tmp_path, [{"query": "q", "positive": "p"}], "rerank", negatives=1)


def test_parts_of_equally_many_negatives(tmp_path):
    lines = [{"query": f"q{i}", "positive": f"p{i}", "negative": ["a", "b", "c"][:n]} for i, n in enumerate((2, 0, 1, 0, 3, 2))]
    parts = by_negatives({"set": Dataset.from_list(rows_of(tmp_path, lines, negatives=2))})
    assert {name: part["query"][:] for name, part in parts.items()} == {
        "set (0 negatives)": ["q1", "q3"],
        "set (1 negatives)": ["q2"],
        "set (2 negatives)": ["q0", "q4", "q5"],
    }
    assert [part.column_names for part in parts.values()] == [
        ["query", "positive", *[f"negative_{i + 1}" for i in range(n)], "row"] for n in range(3)
    ]
    whole = by_negatives({"set": Dataset.from_list(rows_of(tmp_path, TRIPLES, negatives=2))})
    assert list(whole) == ["set"] and len(whole["set"]) == 5


def test_random_negatives_are_other_documents(tmp_path):
    rows = rows_of(tmp_path, TRIPLES, negatives=3, negative_source="random")
    for row in rows:
        drawn = {row[f"negative_{i}"] for i in (1, 2, 3)}
        assert len(drawn) == 3 and drawn <= {f"p{i}" for i in range(5)} - {row["positive"]}
    with pytest.raises(InputError, match="negative of"):
        rows_of(tmp_path, TRIPLES[:1], negatives=1, negative_source="random")


def test_instructions_in_turns_and_rows(tmp_path):
    one = DataSet("unused", instructions=("find", "seek"))
    rows = rows_of(tmp_path, TRIPLES, one=one, prompt="{instruction}: ", rows=3)
    assert [row["query"] for row in rows] == ["find: q0", "seek: q1", "find: q2"]
    assert rows_of(tmp_path, TRIPLES, prompt="{instruction}: ")[0]["query"] == "q0"  # it holds its own
    assert rows_of(tmp_path, TRIPLES, prompt="to find: ")[0]["query"] == "to find: q0"


def test_instructions_of_the_examples(tmp_path, caplog):
    lines = [
        {**TRIPLES[0], "instruction": "mine"},
        TRIPLES[1],
        {**TRIPLES[2], "prompt": "own"},
        {**TRIPLES[3], "instruction": ""},
    ]
    rows = rows_of(tmp_path, lines, one=DataSet("unused", instructions=("find",)), prompt="{instruction}: ")
    assert [row["query"] for row in rows] == ["mine: q0", "find: q1", "own: q2", "find: q3"] and not caplog.messages
    assert [row["query"] for row in rows_of(tmp_path, lines, prompt="to find: ")] == [f"to find: q{i}" for i in range(4)]
    assert "the instructions of 2 examples are not used, as data.prompt has no {instruction}" in caplog.text


def test_prompts_of_the_model(tmp_path):
    own = {"query": "find: ", "document": "text: ", "other": "x: "}
    (row, *_) = rows_of(tmp_path, TRIPLES, negatives=1, prompts=own)
    assert (row["query"], row["positive"]) == ("find: q0", "text: p0") and row["negative_1"].startswith("text: n0")
    (row, *_) = rows_of(tmp_path, TRIPLES, "rerank", negatives=1, prompts=own)
    assert (row["query"], row["docs"][0]) == ("q0", "p0")
    assert trained_prompts(DataTable(), own) == own and trained_prompts(DataTable(prompt="a "), own) == {**own, "query": "a "}
    sets = (DataSet("x/one.jsonl", instructions=("i", "j")), DataSet("two.csv"))
    followed = trained_prompts(DataTable(sets=sets, prompt="{instruction}: "), own)
    assert followed == {"document": "text: ", "other": "x: ", "one": "i: "}


def test_evidence_as_triples_of_sentences(tmp_path):
    text = "The cat sat. The dog ran. The sea is wide."
    line = {"question": "who ran", "document": text, "evidence": [[13, 25]]}
    (row,) = rows_of(tmp_path, [line], one=DataSet("unused", format="evidence"), negatives=2)
    assert row["positive"] == "The dog ran." and {row["negative_1"], row["negative_2"]} == {"The cat sat.", "The sea is wide."}


def test_a_sentence_that_a_span_only_spills_over_into_is_no_positive(tmp_path):
    """Contrast and sentence retrieval judge by one rule."""
    text = "The cat sat on the mat. The dog ran over the wide field. The sea is wide and blue."
    line = {"question": "who ran", "document": text, "evidence": [[20, 57]]}  # and "at." of the first
    rows = rows_of(tmp_path, [line], one=DataSet("unused", format="evidence"), negatives=2)
    assert [row["positive"] for row in rows] == ["The dog ran over the wide field."]
    sentences = split_sentences(text)
    assert label_sentences(text, sentences, [(20, 57)]).tolist() == [False, True, False]
    line = {**line, "evidence": [[20, 57], [56, 57]], "id": "7"}
    with pytest.raises(InputError, match=r"data.jsonl, line 1: span \[56, 57\]"):
        rows_of(tmp_path, [line], one=DataSet("unused", format="evidence"))


def test_evidence_without_two_kinds_of_sentences_is_counted(tmp_path, caplog):
    lines = [
        {"question": "who ran", "document": "The dog ran.", "evidence": [[0, 12]]},
        {"question": "who sat", "document": "The cat sat. The dog ran.", "evidence": [[0, 12]]},
    ]
    assert len(rows_of(tmp_path, lines, one=DataSet("unused", format="evidence"))) == 1
    assert "1 examples were dropped" in caplog.text
