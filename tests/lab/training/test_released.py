"""Rows of paper E's released training file become evidence, in characters."""

import json

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel.errors import CheckpointError, InputError
from runnel.lab.training.data import Evidence, read_evidence
from runnel.lab.training.tables import SentenceData
from runnel.text.sentences import read_spans
from tests.helpers.tokenizers_for_tests import build

UNITS = ["The café is long; the dogs, they run. ", "Rivers run to the sea,\n", "in 2024 (or so)."]


@pytest.fixture(scope="module")
def tokenizer():
    return build("neox_like")


def row(tokenizer, units=UNITS, question="Where do rivers run?\n", **changes):
    """Tokens and ends as the authors make them: the document in one piece, a unit's end at the last token that starts in it."""
    asked, text = tokenizer.encode(question).ids, tokenizer.encode("".join(units))
    edges = [sum(map(len, units[: i + 1])) for i in range(len(units))]
    ends = [len(asked) + int((text.starts < edge).sum()) - 1 for edge in edges]
    made = {
        "input_ids": [*asked.tolist(), *text.ids.tolist()],
        "sentence_indices": ends,
        "sentence_labels": [0, 1, 1],
        "context": units,
        "datapoint_id": "book*7",
        "index2connection": {"2": "both are about rivers"},
    }
    return made | changes


def read(folder, tokenizer, *rows):
    tokenizer.save(folder)
    path = folder / "mambaretriever_train.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return list(read_evidence(path))


def test_rows(tmp_path, tokenizer, caplog):
    first, second = read(tmp_path, tokenizer, row(tokenizer), row(tokenizer, question="Two\nlines?\n", sentence_labels=[1, 0, 0]))
    units = ((0, 38), (38, 61), (61, 77))
    assert first == Evidence("Where do rivers run?", "".join(UNITS), units[1:], "book*7", units)
    assert [first.document[a:b] for a, b in first.spans] == UNITS[1:]
    assert (second.query, second.spans) == ("Two\nlines?", ((0, 38),))
    assert caplog.messages == [f"{tmp_path / 'mambaretriever_train.jsonl'}: released under CC-BY-NC, not for commercial use"]


@pytest.mark.parametrize("lengths", [None, (60,)])
def test_training_scores_exactly_the_units_of_a_row(tmp_path, tokenizer, lengths):
    """Neither sentences nor clauses: the authors' units end inside sentences, and have no white space at their ends."""
    units = [f"keeper {n} saw the dog. She sat on, and on" + ";" * (n % 2) for n in range(20)]
    labels = [int(n in (7, 8)) for n in range(20)]
    (example,) = read(tmp_path, tokenizer, made := row(tokenizer, units, sentence_labels=labels))
    model = tiny_model(tmp_path / "model")
    _, item = SentenceData.write(tmp_path / "t.arrow", model, [example], tokens=lengths)[0]
    scored = [item.sentences.text[a:b] for a, b in item.sentences.spans.tolist()]
    first = units.index(scored[0])
    assert scored == units[first : first + len(scored)] and (len(scored) < 20) == (lengths is not None)
    assert item.labels.tolist() == labels[first : first + len(scored)] and item.labels.sum() == 2
    # each at its last token, which in the authors' tokens is where the row says
    tokens = read_spans(example.document, [tokenizer.encode(example.document)], np.array(example.units))
    asked = len(made["input_ids"]) - len(tokens.ids)
    assert (tokens.ends + asked).tolist() == made["sentence_indices"]
    np.testing.assert_array_equal(item.request.positions - (len(item.request.ids) - len(item.sentences.ids)), item.sentences.ends)


@pytest.mark.parametrize("off", [-4, 4])
def test_ends_that_are_off_by_a_few_tokens_and_text_that_is_not_normalized(tmp_path, tokenizer, off):
    """As the authors' code warns; and GPT-NeoX's tokens are of text in NFC."""
    units = [UNITS[0].replace("é", "e\u0301"), *UNITS[1:]]
    made = row(tokenizer, units)
    made["sentence_indices"][0] += off
    (one,) = read(tmp_path, tokenizer, made)
    assert (one.query, one.document) == ("Where do rivers run?", "".join(units))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": []}, "line 2: .*'context'"),
        ({"sentence_labels": [0.5, 1, 1]}, "line 2: "),
        ({"sentence_labels": [0, 1]}, "line 2: "),
        ({"sentence_labels": [0, 1, 2]}, "line 2: "),
        ({"sentence_indices": [9999, 1, 2]}, "line 2: "),
        ({"context": ["Another text.", "b", "c"]}, "line 2: .*'Where do rivers run"),
    ],
)
def test_malformed_rows(tmp_path, tokenizer, changes, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, tokenizer, row(tokenizer), row(tokenizer, **changes))


def test_without_the_tokenizer(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: (_ for _ in ()).throw(OSError("offline")))
    path = tmp_path / "mambaretriever_train.jsonl"
    path.write_text(json.dumps(row(tokenizer)) + "\n")
    with pytest.raises(CheckpointError, match="EleutherAI/gpt-neox-20b"):
        list(read_evidence(path))
