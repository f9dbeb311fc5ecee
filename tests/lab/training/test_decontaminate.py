"""Overlap with test sets."""

import gzip
import json

import pytest
from helpers.files import write_files

from runnel.errors import InputError
from runnel.lab.training.data import Evidence, Triple
from runnel.lab.training.decontaminate import POSITIVE, QUERY, SENTENCES, Decontaminator

CHINESE = "它在河边等待一条大鱼游过来然后吃掉它。"
ENGLISH = (
    "The heron waits at the river for a fish. Yes. It eats three large frogs before the night."
)
TEST_DOCUMENT = f"{ENGLISH}\n\nMaterials and Methods\n\n{CHINESE}"


def sentences(count, start=0):
    return "".join(
        f"This is the sentence with the number {n} of all. " for n in range(start, start + count)
    )


@pytest.fixture
def guard(tmp_path):
    row = {"question": "What does a heron eat?", "document": TEST_DOCUMENT, "evidence": [[0, 40]]}
    texts = ["An answer of more than five words.", "Only in the corpus of the test set.", "Yes."]
    texts.append("The answer to a query for training.")
    write_files(
        tmp_path,
        {
            "test.jsonl": [row, row],
            "beir/corpus.jsonl": [
                {"_id": name, "text": text} for name, text in zip("abcd", texts, strict=True)
            ],
            "beir/queries.jsonl": [{"_id": "q", "text": "tested"}, {"_id": "r", "text": "trained"}],
            "beir/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\ta\t1\nq\tc\t1\nq\tb\t0\n",
            "beir/qrels/train.tsv": "query-id\tcorpus-id\tscore\nr\td\t1\n",
        },
    )
    return Decontaminator([tmp_path / "test.jsonl", tmp_path / "beir"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (sentences(98), False),
        (sentences(98) + "The heron WAITS at the river -- for a fish!", True),  # 1 of 99
        # 1 of 100 is not more than 1 %
        (sentences(99) + "The heron waits at the river for a fish.", False),
        (
            sentences(99)
            + "The heron waits at the river for a fish. It eats three large frogs before the"
            " night.",
            True,
        ),
        (sentences(5) + "Yes. Yes. Yes.", False),
        (sentences(5) + CHINESE, True),
        ("", False),
    ],
)
def test_evidence_by_shared_sentences(guard, text, found):
    evidence = Evidence("What does a heron eat?", text, ((0, 1),))
    assert guard.contaminated(evidence) is found
    # and again, from what is remembered of the last document
    assert guard.contaminated(evidence) is found
    assert dict(guard.counts) == ({SENTENCES: 2} if found else {})


@pytest.mark.parametrize(
    ("query", "positives", "reason"),
    [
        ("Tested?", ("some other text",), QUERY),
        ("what does a HERON eat", ("some other text",), QUERY),
        ("other", ("fine", "an answer of more than FIVE words"), POSITIVE),
        ("other", (TEST_DOCUMENT,), POSITIVE),
        ("other", ("Only in the corpus of the test set.",), None),
        ("trained", ("The answer to a query for training.",), None),
        ("other", ("Yes.",), None),
    ],
)
def test_triples_by_query_and_positives(guard, query, positives, reason):
    assert guard.contaminated(
        Triple(query, positives, ("An answer of more than five words.",))
    ) is (reason is not None)
    assert dict(guard.counts) == ({reason: 1} if reason else {})


LONG = "The osprey dives into the cold lake at noon."


@pytest.mark.parametrize(
    "row",
    [
        {"question": "What dives?", "document": LONG, "evidence": []},
        {"question": "What dives?", "document": LONG, "answer": "an osprey"},
        {"query": "What dives?", "document": LONG},
        {"query": "What dives?", "document": [LONG, "Another one."]},
        {"_id": "7", "title": "Osprey", "text": f"It is a bird. {LONG}"},
    ],
    ids=[
        "evidence without spans",
        "with an answer",
        "query and document",
        "several documents",
        "rows of text",
    ],
)
def test_rows_of_documents_guard(tmp_path, row):
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    guard = Decontaminator([tmp_path / "test.jsonl.gz"])
    assert guard.contaminated(Evidence("other", sentences(10) + LONG, ((0, 1),)))
    assert guard.contaminated(Triple("what DIVES", ("other",))) is ("text" not in row)
    assert not guard.contaminated(Triple("an osprey", ("other",)))


def test_tables_plain_documents_and_folders_guard(tmp_path):
    (tmp_path / "test.csv").write_text(
        f"id,question,document,answer\n1,What dives?,{LONG},an osprey\n"
    )
    guard = Decontaminator([tmp_path / "test.csv"])
    assert guard.contaminated(Evidence("other", LONG, ((0, 1),))) and guard.contaminated(
        Triple("What dives", ("x",))
    )
    folder = tmp_path / "tests" / "deep"
    folder.mkdir(parents=True)
    write_files(
        folder,
        {
            "a.txt": "Annual report for 2024\n\nThe heron stands in the river all day.\n",
            "b.md": f"Query\tanswer\n\n{LONG}\n",
            "c.html": "<!doctype html><p>Der Käfer sitzt auf einem grünen Blatt.</p>".encode(
                "cp1252"
            ),
        },
    )
    guard = Decontaminator([tmp_path / "tests"])
    found = (
        "The heron stands in the river all day.",
        LONG,
        "Der Käfer sitzt auf einem grünen Blatt.",
    )
    assert all(guard.contaminated(Evidence("q", sentences(10) + text, ((0, 1),))) for text in found)
    assert not guard.contaminated(Evidence("q", sentences(10), ((0, 1),)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", "", r"empty\.txt .* 1 examples"),
        ("short.md", "Yes. No.", r"short\.md .* 1 examples"),
        ("x.jsonl", '{"query": "q", "positive": ""}\n', r"x\.jsonl .* without a positive"),
        ("folder", None, "folder .* 0 examples"),
        ("x.csv", "What dives?,An osprey.\n", r"x\.csv, line 1: "),
        (
            "x.jsonl",
            '{"question": "q", "document": "d"}\n{"question": "q", "document": null}\n',
            "line 2: ",
        ),
    ],
)
def test_a_test_set_that_guards_nothing_is_an_error(tmp_path, name, content, message):
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        Decontaminator([path])
