"""Rows of paper E's released training file become evidence, in characters."""

import json

import pytest

from runnel.errors import CheckpointError, InputError
from runnel.training.data import Evidence, read_evidence
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
    assert first == Evidence("Where do rivers run?", "".join(UNITS), ((38, 61), (61, 77)), "book*7")
    assert [first.document[a:b] for a, b in first.spans] == UNITS[1:]
    assert (second.query, second.spans) == ("Two\nlines?", ((0, 38),))
    assert caplog.messages == [f"{tmp_path / 'mambaretriever_train.jsonl'}: released under CC-BY-NC, not for commercial use"]


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
        ({"context": []}, "line 2: expected a list of texts as 'context' and lists of integers as the others of"),
        ({"sentence_indices": None}, "line 2: expected a list of texts as 'context' and lists of integers"),
        ({"sentence_labels": [0.5, 1, 1]}, "line 2: expected a list of texts as 'context' and lists of integers"),
        (
            {"sentence_labels": [0, 1]},
            "line 2: 3 units have 2 labels and 3 ends, in .* tokens; expected a label of 0 or 1 and an end",
        ),
        ({"sentence_labels": [0, 1, 2]}, "line 2: 3 units have 3 labels and 3 ends, in .* tokens; expected a label of 0 or 1"),
        ({"sentence_indices": [9999, 1, 2]}, "line 2: 3 units have 3 labels and 3 ends, in .* tokens; expected"),
        (
            {"context": ["Another text.", "b", "c"]},
            "line 2: the tokens begin with 'Where do rivers run.*'; expected a question, a line end",
        ),
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
    with pytest.raises(
        CheckpointError, match=r"has no tokenizer: it needs tokenizer.json of EleutherAI/gpt-neox-20b, .* \(offline\); put"
    ):
        list(read_evidence(path))
