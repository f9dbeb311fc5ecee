"""Rows of Arrow files: labels of sentences, windows of long documents, triples
for the libraries.
"""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from helpers.evidence_examples import examples
from helpers.files import write_rows
from helpers.texts import repeat
from helpers.tiny import tiny_model
from helpers.tiny_training import make_item
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.recipes import DataSet, DataTable, Recipe
from runnel.lab.training.tables import (
    SentenceData,
    choose_window,
    label_sentences,
    trained_prompts,
    write_triple_table,
)
from runnel.models.model import Model
from runnel.text.sentences import UNITS, split_sentences

TEXT = "The cat sat on the mat.  A river runs to the sea. \n\nFinally the dog sat. The end of it."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def positives(start: int, end: int, text: str = TEXT) -> list[int]:
    return np.flatnonzero(label_sentences(text, split_sentences(text), [(start, end)])).tolist()


@pytest.mark.parametrize(
    ("piece", "before", "after", "expected"),
    [
        ("mat", 0, 0, [0]),
        ("dog", 0, 0, [2]),
        ("The cat sat on the mat.  A river runs to the sea.", 0, 0, [0, 1]),
        (TEXT, 0, 0, [0, 1, 2, 3]),
        # what spills over into neighbors leaves them negative
        ("A river runs to the sea.", 4, 5, [1]),
        # less than half of the first sentence, and of the span
        ("the mat.  A river runs", 0, 0, [1]),
    ],
)
def test_labels(piece: str, before: int, after: int, expected: list[int]) -> None:
    start = TEXT.index(piece)
    assert positives(start - before, start + len(piece) + after) == expected


def test_white_space_code_points_and_places_of_windows() -> None:
    text = "Yes." + repeat("\n", 40) + "The cat sat on the mat."
    assert positives(0, 44, text) == positives(0, 4, text) == [0]
    text = repeat("\U0001f40d", 30) + "! The cat sat."
    start = text.index("cat")
    assert positives(start, start + 3, text) == [1]
    bounds = np.arange(0, 1001, 10)
    labels = np.zeros(100, dtype=bool)
    labels[50] = True
    starts = [
        choose_window(bounds, labels, [200], np.random.default_rng(seed)).start
        for seed in range(200)
    ]
    assert set(starts) == set(range(31, 51))


@given(
    st.lists(
        st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))), min_size=1, max_size=3
    )
)
def test_every_span_makes_a_sentence_positive_that_it_overlaps(
    pairs: list[tuple[int, int]],
) -> None:
    spans = [(min(p), max(p)) for p in pairs if TEXT[min(p) : max(p)].strip()]
    sentences = split_sentences(TEXT)
    labels = label_sentences(TEXT, sentences, spans)
    for start, end in spans:
        alone = label_sentences(TEXT, sentences, [(start, end)])
        assert alone.any()
        assert (labels >= alone).all()
        assert all(TEXT[max(start, a) : min(end, b)].strip() for a, b in sentences[alone].tolist())


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.data(),
    st.sets(st.integers(1, 200), min_size=1),
    st.integers(0, 9),
)
def test_a_window_holds_the_evidence_within_its_tokens(lengths, data, choices, seed) -> None:
    bounds = np.cumsum([7, *lengths])
    tokens = sorted(choices)
    labels = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    )
    window = choose_window(bounds, labels, tokens, np.random.default_rng(seed))
    held = int(bounds[window.stop] - bounds[window.start])
    whole = window == slice(0, len(lengths))
    assert 0 <= window.start < window.stop <= len(lengths)
    assert labels[window].sum() == labels.sum()
    assert held <= tokens[-1] or whole or window.stop - window.start == 1
    assert whole or sum(lengths) > tokens[0]
    assert window == choose_window(bounds, labels, tokens, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("last", "expected"), [(12, {50, 200, 500}), (25, {200, 500}), (60, {500}), (61, {1000})]
)
def test_evidence_that_is_far_apart_takes_a_longer_window_or_the_whole_document(
    last: int, expected: set[int]
) -> None:
    """Sentences of 10 tokens; the evidence is sentence 11 and another."""
    bounds = np.arange(0, 1001, 10)
    labels = np.zeros(100, dtype=bool)
    labels[[11, last]] = True
    windows = [
        choose_window(bounds, labels, [50, 200, 500], np.random.default_rng(seed))
        for seed in range(30)
    ]
    held = [int(bounds[window.stop] - bounds[window.start]) for window in windows]
    # whole sentences only
    assert {min(n for n in (50, 200, 500, 1000) if n >= tokens) for tokens in held} == expected
    assert all(labels[window].sum() == 2 for window in windows)


def test_examples_have_the_units_of_the_model(tmp_path: Path, model: Model, monkeypatch) -> None:
    (example,) = examples(1)
    counts = {}
    for unit in UNITS:
        monkeypatch.setattr(model, "unit", unit)
        item = SentenceData.write(tmp_path / f"{unit}.arrow", model, [example], tokens=None)[0][1]
        expected = make_item(model, example.query, example.document)
        for name in ("ids", "bounds", "ends"):
            stored, made = (getattr(one.sentences, name) for one in (item, expected))
            np.testing.assert_array_equal(stored, made)
        np.testing.assert_array_equal(item.request.ids, expected.request.ids)
        np.testing.assert_array_equal(item.request.positions, expected.request.positions)
        counts[unit] = len(item.full)
        assert item.labels.sum() == 1
    assert counts["paragraph"] < counts["clauses"] < counts["sentence"]


def test_long_documents_are_cut_to_windows_of_the_mixed_lengths(
    tmp_path: Path, model: Model, caplog
) -> None:
    given = examples(60, sentences=(30, 31))
    far = repeat("The cat sat on the mat. ", 40)
    given.append(Evidence("dog", far, ((0, 22), (24 * 39, 24 * 40 - 1)), "far"))
    with caplog.at_level(logging.INFO, "runnel"):
        data = SentenceData.write(tmp_path / "a.arrow", model, given, tokens=(40, 90), seed=1)
    assert (
        "60 were cut to windows; 1 stay whole because no window holds their evidence" in caplog.text
    )
    *items, (_, whole) = (data[i] for i in range(61))
    assert (len(whole.labels), whole.labels.sum()) == (40, 2)
    documents = []
    for (name, item), example in zip(items, given, strict=False):
        (at,) = np.flatnonzero(item.labels)
        tokens = item.sentences.ids[item.sentences.bounds[at] : item.sentences.bounds[at + 1]]
        start, end = example.spans[0]
        assert (
            name == example.id
            and tokens.tolist() == model.tokenizer.encode(example.document[start:end]).ids.tolist()
        )
        documents.append(item.sentences.bounds[-1])
    short = [d for d in documents if d <= 40]
    long = [d for d in documents if d > 40]
    assert max(long) <= 90 and min(len(short), len(long)) > 15
    assert min(short) > 40 - 26 and min(long) > 90 - 26  # whole sentences, of 13 tokens at most


def test_examples_that_cannot_be_used_are_named(tmp_path: Path, model: Model) -> None:
    with pytest.raises(InputError, match="evidence example x19: "):
        SentenceData.write(
            tmp_path / "bad.arrow", model, [*examples(2), Evidence("cat", "", (), "x19")]
        )
    assert not (tmp_path / "bad.arrow").exists()
    with pytest.raises(InputError, match="the data has no examples"):
        SentenceData.write(tmp_path / "bad.arrow", model, [])


def rows_of(tmp_path, lines, job="embed", one=None, prompts=None, **table):
    source = write_rows(tmp_path / "data.jsonl", lines)
    guard = Decontaminator(table.get("exclude", ()))
    recipe = Recipe(job, data=DataTable(**table))
    prompts = trained_prompts(recipe.data, prompts or {})
    table = replace(one or DataSet(""), path=str(source))
    write_triple_table(tmp_path / "rows.arrow", table, recipe, guard, prompts)
    assert not list(tmp_path.glob("*.partial"))
    return Dataset.from_file(str(tmp_path / "rows.arrow")).to_list()


TRIPLES = [
    {"query": f"q{i}", "positive": f"p{i}", "negative": [f"n{i}{j}" for j in range(6)]}
    for i in range(5)
]


def test_each_sample_has_negatives_of_its_own(tmp_path):
    rows = rows_of(tmp_path, TRIPLES, negatives=3, samples=2)
    assert (
        len(rows) == 10
        and list(rows[0]) == "query positive negative_1 negative_2 negative_3 negatives row".split()
    )
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        drawn = [row[f"negative_{i}"] for row in (one, two) for i in (1, 2, 3)]
        assert len(set(drawn)) == 6 and {text[:2] for text in drawn} == {"n" + one["query"][1]}
    assert rows[2]["row"] == "data.jsonl: example 2 ('q1')"
    assert rows == rows_of(tmp_path, TRIPLES, negatives=3, samples=2)


def test_lists_for_a_reranker(tmp_path, caplog):
    rows = rows_of(
        tmp_path,
        [*TRIPLES, {"query": "q", "positive": "p", "negative": ["n"]}],
        "rerank",
        negatives=2,
    )
    assert rows[0]["docs"][0] == "p0" and set(rows[0]["docs"][1:]) < set(TRIPLES[0]["negative"])
    assert rows[0]["labels"] == [0.0, -np.inf, -np.inf]  # a softmax of these is 1, 0, 0
    assert (
        [len(row["docs"]) for row in rows] == [len(row["labels"]) for row in rows] == [3] * 5 + [2]
    )
    assert "of 6 rows, data.negatives = 2: 1 with 1" in caplog.text
    with pytest.raises(InputError, match="'q'"):
        rows_of(tmp_path, [{"query": "q", "positive": "p"}], "rerank", negatives=1)


def test_rows_with_fewer_negatives(tmp_path, caplog):
    lines = [
        *TRIPLES,
        {"query": "q", "positive": "p"},
        {"query": "r", "positive": "s", "negative": None},
    ]
    rows = rows_of(tmp_path, lines, negatives=8)
    assert [row["negatives"] for row in rows] == [6] * 5 + [0] * 2
    assert (
        len({rows[0][f"negative_{i}"] for i in range(1, 7)}) == 6 and rows[0]["negative_7"] is None
    )
    assert "data.jsonl: of 7 rows, data.negatives = 8: 2 with 0, 5 with 6" in caplog.text
    rows = rows_of(
        tmp_path,
        [*TRIPLES, {"query": "q", "positive": "p", "negative": ["n", "m"]}],
        negatives=2,
        samples=3,
    )
    assert len(rows) == 18 and all(row["negative_1"] != row["negative_2"] for row in rows)
    assert (
        "the 3 rows of 1 positives share negatives: there are fewer than data.negatives x"
        " data.samples = 6" in caplog.text
    )


def test_random_negatives_are_other_documents(tmp_path):
    for row in rows_of(tmp_path, TRIPLES, negatives=3, negative_source="random"):
        drawn = {row[f"negative_{i}"] for i in (1, 2, 3)}
        assert len(drawn) == 3 and drawn <= {f"p{i}" for i in range(5)} - {row["positive"]}
    with pytest.raises(InputError, match="negative of"):
        rows_of(tmp_path, TRIPLES[:1], negatives=1, negative_source="random")


def test_instructions(tmp_path, caplog):
    lines = [
        {**TRIPLES[0], "instruction": "mine"},
        TRIPLES[1],
        {**TRIPLES[2], "prompt": "own"},
        {**TRIPLES[3], "instruction": ""},
    ]
    rows = rows_of(
        tmp_path, lines, one=DataSet("unused", instructions=("find",)), prompt="{instruction}: "
    )
    assert [row["query"] for row in rows] == [
        "mine: q0",
        "find: q1",
        "own: q2",
        "find: q3",
    ] and not caplog.messages
    assert [row["query"] for row in rows_of(tmp_path, lines, prompt="to find: ")] == [
        f"to find: q{i}" for i in range(4)
    ]
    assert (
        "the instructions of 2 examples are not used, as data.prompt has no {instruction}"
        in caplog.text
    )
    one = DataSet("unused", instructions=("find", "seek"))
    rows = rows_of(tmp_path, TRIPLES, one=one, prompt="{instruction}: ", rows=3)
    assert [row["query"] for row in rows] == ["find: q0", "seek: q1", "find: q2"]
    # it holds its own
    assert rows_of(tmp_path, TRIPLES, prompt="{instruction}: ")[0]["query"] == "q0"
    assert rows_of(tmp_path, TRIPLES, prompt="to find: ")[0]["query"] == "to find: q0"


def test_prompts_of_the_model(tmp_path):
    own = {"query": "find: ", "document": "text: ", "other": "x: "}
    row, *_ = rows_of(tmp_path, TRIPLES, "rerank", negatives=1, prompts=own)
    assert (row["query"], row["docs"][0]) == ("q0", "p0")
    assert trained_prompts(DataTable(), own) == own and trained_prompts(
        DataTable(prompt="a "), own
    ) == {**own, "query": "a "}
    sets = (DataSet("x/one.jsonl", instructions=("i", "j")), DataSet("two.csv"))
    followed = trained_prompts(DataTable(sets=sets, prompt="{instruction}: "), own)
    assert followed == {"document": "text: ", "other": "x: ", "one": "i: "}


def test_evidence_as_triples_of_sentences(tmp_path, caplog):
    text = "The cat sat. The dog ran. The sea is wide."
    lines = [
        {"question": "who ran", "document": text, "evidence": [[13, 25]]},
        {"question": "who ran", "document": "The dog ran.", "evidence": [[0, 12]]},
    ]
    (row,) = rows_of(tmp_path, lines, one=DataSet("unused", format="evidence"), negatives=2)
    assert row["positive"] == "The dog ran." and {row["negative_1"], row["negative_2"]} == {
        "The cat sat.",
        "The sea is wide.",
    }
    assert "1 examples were dropped" in caplog.text
