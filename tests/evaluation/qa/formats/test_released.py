"""The released file of paper E: its own points, their sentences, and the categories of a second file."""

import gzip
import json

import pytest

from runnel.errors import InputError
from runnel.evaluation.qa.loading import read_qa_sets
from runnel.evaluation.qa.records import QaDocument


def point(units, question="Where?", answer=("in the attic",), kind="sentence"):
    ids = list(range(50))
    return {"input_ids": ids, "full_text_sentences": units, "question": question, "answer": list(answer), "answer_type": kind,
            "sentence_indices": [24, 49]}  # fmt: skip


UNITS = ["The letters are in the attic. ", "Ada found them."]
DATA = {
    "multifieldqa_en": {"a": point(UNITS, answer=("in the attic", "attic")), "b": point(UNITS, "Who?", ("Ada",), "paragraph")},
    "quality": {"c": point(["Up.", "Down."], "Where?\n(A) up\n(B) down", ("(A) up",))},
}


def write(folder, data, name="mambaretriever_test.json"):
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_points(tmp_path, caplog):
    path = write(tmp_path, DATA)
    first, second = read_qa_sets(tmp_path)
    assert (first.name, first.suite, first.license, first.multiple_choice) == ("multifieldqa_en", "LongBench", "CC-BY-NC", False)
    assert (second.name, second.multiple_choice) == ("quality", True)
    (document,) = first.documents.values()
    assert document == QaDocument(document.id, "".join(UNITS), ((0, 30), (30, 45)))
    assert [(q.id, q.question, q.answers, q.answer_type, q.category) for q in first.questions] == [
        ("a", "Where?", ("in the attic", "attic"), "sentence", None),
        ("b", "Who?", ("Ada",), "paragraph", None),
    ]
    assert second.questions[0].answers == ("(A) up",) and second.questions[0].category == "creative"
    assert caplog.messages == [f"{path}: released under CC-BY-NC, not for commercial use"]


def test_categories_of_the_second_file(tmp_path):
    path = tmp_path / "mambaretriever_test.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DATA).encode()))
    points = DATA["multifieldqa_en"]
    second = write(tmp_path, {"Official": {"a": points["a"]}}, "mambaretriever_test_per_category.json")
    (one,) = read_qa_sets(path, ["multifieldqa_en"])
    assert [question.category for question in one.questions] == ["official", None]
    assert "1 questions are not in mambaretriever_test_per_category.json" in one.notes
    with pytest.raises(InputError, match=r"has the questions by category; give mambaretriever_test.json, which names their sets"):
        list(read_qa_sets(second))
    write(tmp_path, {"legal": {}, "books": {"a": points["a"]}}, second.name)
    with pytest.raises(InputError, match="unknown category 'books'; expected educational, creative, official, conversational"):
        list(read_qa_sets(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_type": "word"}, "json, quality, 'c': the answer type of question 'c' is 'word'"),
        (
            {"full_text_sentences": None},
            "json, quality, 'c': expected a text or a list of texts as \"full_text_sentences\", got NoneType",
        ),
        ({"full_text_sentences": []}, "json, quality, 'c': document '[0-9a-f]{16}' is empty"),
        ({"answer": []}, "json, quality, 'c': question 'c' has no answer"),
    ],
)
def test_malformed(tmp_path, change, message):
    path = write(tmp_path, DATA | {"quality": {"c": DATA["quality"]["c"] | change}})
    sets = read_qa_sets(path)
    assert next(sets).name == "multifieldqa_en"
    with pytest.raises(InputError, match=message):
        next(sets)
    with pytest.raises(InputError, match="json, quality, 'c': expected an object in braces, got list"):
        list(read_qa_sets(write(tmp_path, {"quality": {"c": []}})))
