"""Sets are found by their files and read one by one; samples of each layout, and what published
files have wrong.
"""

import gzip
import json
import re
from pathlib import Path

import pytest
from helpers.files import write_files, write_rows

from runnel.errors import InputError, ReadError
from runnel.lab.evaluation.qa.loading import (
    SETS,
    SUITES,
    Fields,
    QaDocument,
    QaSet,
    read_qa_sets,
)

ATTIC = "The letters are in the attic. Ada found them in 1912."
CELLAR = "The wine is in the cellar. Nobody has counted it."
ROW = {"input": "Where?", "context": ATTIC, "answers": ["in the attic"]}


def read_one(path: Path) -> QaSet:
    (one,) = read_qa_sets(path)
    return one


def shown(one: QaSet) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return (id, document, question, answers) of a set's questions."""
    return [(q.id, one.documents[q.document].text, q.question, q.answers) for q in one.questions]


def names(path, *only):
    return [one.name for one in read_qa_sets(path, only)]


def test_a_folder_of_several_suites_and_the_hubs_cache(tmp_path):
    write_files(
        tmp_path,
        {
            "LongBench/data/qasper.jsonl": [ROW],
            "LongBench/data/qasper_e.jsonl": [ROW],  # of LongBench-E, which is not used
            "LVEval/loogle_MIR_mixup_64k.jsonl": [ROW],
            ".cache/qasper.jsonl": [ROW],
            "LEval/tpo.jsonl": [{"damaged": 1}],
            "other/test.json": ["{}"],  # that is not DocFinQA's
        },
    )
    assert names(tmp_path, "qasper") == ["qasper"] == names(tmp_path / "LongBench")
    sets = read_qa_sets(str(tmp_path))
    # read one by one
    assert [next(sets).name, next(sets).name] == ["qasper", "loogle_MIR_mixup_64k"]
    with pytest.raises(InputError, match=r"tpo.jsonl, line 1: .*'damaged'"):
        next(sets)
    blob = write_rows(tmp_path / "blobs" / "0a1b", [ROW])
    (tmp_path / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "snapshots" / "1" / "qasper.jsonl").symlink_to(blob)
    assert names(tmp_path / "snapshots" / "1") == ["qasper"]


@pytest.mark.parametrize(
    ("files", "path", "only", "named"),
    [
        ({"qasper.txt": []}, "", (), "has no files of LongBench, InfiniteBench"),
        ({"qasper.jsonl": [ROW]}, "", ("qaspr",), "'qaspr'; expected one of qasper"),
        ({}, "none.jsonl", (), "no file .*none.jsonl"),
        ({"mine.jsonl": [ROW]}, "mine.jsonl", (), "mine.jsonl, line 1: a field is 'input'"),
        ({"mine.json": ["text"]}, "mine.json", (), "mine.json is not valid JSON at character 0"),
        (
            {"qasper.jsonl": [ROW], "two/qasper.jsonl": [ROW]},
            "",
            (),
            "qasper is in .*/qasper.jsonl and in .*two/qasper.jsonl",
        ),
    ],
)
def test_what_is_missing_or_ambiguous(tmp_path, files, path, only, named):
    for name, rows in files.items():
        write_rows(tmp_path / name, rows)
    with pytest.raises((InputError, ReadError), match=named):
        names(tmp_path / path, *only)


EMPTY = {"length": 12, "dataset": "qasper", "language": "en", "all_classes": None}
ROWS = [
    {
        "_id": "a1",
        "input": "Where are the letters?",
        "context": ATTIC,
        "answers": ["in the attic", "attic", "attic"],
    }
    | EMPTY,
    {"_id": "a2", "input": "Who found them?", "context": ATTIC, "answers": ["Ada"]} | EMPTY,
    {"_id": "b1", "input": "Where is the wine?", "context": CELLAR, "answers": ["in the cellar"]}
    | EMPTY,
]


def test_longbench(tmp_path):
    one = read_one(write_rows(tmp_path / "data" / "qasper.jsonl", ROWS).parent)
    assert (one.name, one.suite, one.license, one.multiple_choice) == (
        "qasper",
        "LongBench",
        "MIT",
        False,
    )
    assert one.notes == ("3 questions; paper E has 200",)
    assert len(one.documents) == 2 and {question.category for question in one.questions} == {
        "official"
    }
    assert shown(one)[::2] == [
        ("a1", ATTIC, "Where are the letters?", ("in the attic", "attic")),
        ("b1", CELLAR, "Where is the wine?", ("in the cellar",)),
    ]


def test_parquet_of_the_hub_and_lv_eval_without_ids(tmp_path):
    for part, rows in enumerate((ROWS[:1], ROWS[1:])):
        write_rows(tmp_path / "qasper" / f"test-0000{part}-of-00002.parquet", rows)
    assert [question.id for question in read_one(tmp_path).questions] == ["a1", "a2", "b1"]
    rows = [SCRIPTS[0], SCRIPTS[1] | {"output": ["Villain/Antagonist"]}]
    for split in ("train", "test"):
        path = (
            tmp_path
            / "hub"
            / "muld_Character_Archetype_Classification"
            / "data"
            / f"{split}-00000-of-00001.parquet"
        )
        write_rows(path, rows[: 1 + (split == "test")])
    assert len(read_one(tmp_path / "hub").questions) == 2
    row = {
        "input": "Where is the wine?",
        "context": CELLAR,
        "answers": ["in the cellar"],
        "answer_keywords": "cellar",
    }
    one = read_one(write_rows(tmp_path / "loogle_CR_mixup" / "loogle_CR_mixup_16k.jsonl", [row]))
    assert (one.name, one.suite) == ("loogle_CR_mixup_16k", "LV-Eval")
    assert [(question.id, question.category) for question in one.questions] == [("1", None)]


OWN = {"question": "Where are the letters?", "document": ATTIC, "answers": "in the attic"}


def test_own_answers_and_choices(tmp_path):
    rows = [
        OWN,
        OWN
        | {
            "id": "who",
            "question": "Who found them?",
            "answers": ["Ada"],
            "answer_type": "paragraph",
        },
    ]
    one = read_one(
        write_rows(tmp_path / "house.jsonl", [rows[0], rows[1] | {"category": "creative"}])
    )
    assert (one.name, one.suite, one.license, one.notes, one.multiple_choice) == (
        "house",
        "",
        "",
        (),
        False,
    )
    assert shown(one) == [
        ("1", ATTIC, "Where are the letters?", ("in the attic",)),
        ("who", ATTIC, "Who found them?", ("Ada",)),
    ]
    assert (one.questions[1].answer_type, one.questions[1].category) == ("paragraph", "creative")
    one = read_one(
        write_rows(tmp_path / "house.jsonl", [OWN | {"choices": ["in the hall", "in the attic"]}])
    )
    assert one.multiple_choice and one.questions[0].answers == ("B. in the attic",)
    assert one.questions[0].question == "Where are the letters?\nA. in the hall\nB. in the attic"


def point(units, question="Where?", answer=("in the attic",), kind="sentence"):
    return {
        "input_ids": list(range(50)),
        "full_text_sentences": units,
        "question": question,
        "answer": list(answer),
        "answer_type": kind,
        "sentence_indices": [24, 49],
    }


UNITS = ["The letters are in the attic. ", "Ada found them."]
DATA = {
    "multifieldqa_en": {
        "a": point(UNITS, answer=("in the attic", "attic")),
        "b": point(UNITS, "Who?", ("Ada",), "paragraph"),
    },
    "quality": {"c": point(["Up.", "Down."], "Where?\n(A) up\n(B) down", ("(A) up",))},
}


def write_points(folder, data, name="mambaretriever_test.json"):
    return write_rows(folder / name, [data])


def test_released_points(tmp_path, caplog):
    path = write_points(tmp_path, DATA)
    first, second = read_qa_sets(tmp_path)
    assert (first.name, first.suite, first.license, first.multiple_choice) == (
        "multifieldqa_en",
        "LongBench",
        "CC-BY-NC",
        False,
    )
    assert (second.name, second.multiple_choice) == ("quality", True)
    (document,) = first.documents.values()
    assert document == QaDocument(document.id, "".join(UNITS), ((0, 30), (30, 45)))
    assert [(q.id, q.question, q.answers, q.answer_type, q.category) for q in first.questions] == [
        ("a", "Where?", ("in the attic", "attic"), "sentence", None),
        ("b", "Who?", ("Ada",), "paragraph", None),
    ]
    assert second.questions[0].answers == ("(A) up",) and second.questions[0].category == "creative"
    assert caplog.messages == [f"{path}: released under CC-BY-NC, not for commercial use"]


def test_released_categories_of_the_second_file(tmp_path):
    path = tmp_path / "mambaretriever_test.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DATA).encode()))
    points = DATA["multifieldqa_en"]
    second = write_points(
        tmp_path, {"Official": {"a": points["a"]}}, "mambaretriever_test_per_category.json"
    )
    (one,) = read_qa_sets(path, ["multifieldqa_en"])
    assert [question.category for question in one.questions] == ["official", None]
    with pytest.raises(InputError, match=r"give mambaretriever_test\.json"):
        list(read_qa_sets(second))
    write_points(tmp_path, {"legal": {}, "books": {"a": points["a"]}}, second.name)
    with pytest.raises(InputError, match=r"multifieldqa_en, 'a': .*'books'"):
        list(read_qa_sets(path))


PLACES = ["the cellar", "the attic", "the hall", "the yard"]
CHOICES = [f"{letter}. {place}" for letter, place in zip("ABCD", PLACES, strict=True)]
INFINITE = {"id": 0, "context": ATTIC, "input": "Where are the letters?", "options": PLACES}
LEVAL = {"input": ATTIC, "source": "made up", "evaluation": "exam"}
EXAM = "Question 1. A. Lovelace: where are the letters?\n" + "\n".join(CHOICES)
WRAPPED = "Where are the letters?\n\n (A) In the cellar,\nwhere the wine is.\n (B) In the attic"
TASK = "Answer with a number, from the document given below.\n\n"
MEETING = '"Shall we begin?" said by Ada\n"Yes. I am ready." said by '
BAMBOO = {
    "question": "Where are the letters?",
    "evidence": "...",
    "options": CHOICES,
    "answer": "B",
    "content": ATTIC,
}
SCRIPTS = [
    {
        "input": "Is Ada a hero or a villain? INT. HOUSE - DAY\nADA: Who?",
        "output": ["Hero"],
        "metadata": "",
    },
    {"input": "Is Ben a hero or a villain?\nEXT. YARD\nBEN: Me!", "output": "Villain/Antagonist"},
]
CLASSES = "A. Hero\nB. Villain/Antagonist"
ASKED = "\n".join([INFINITE["input"], *CHOICES])
NUMBER = "when were they found\nThe answer is a number."
FREE = ("0", ATTIC, INFINITE["input"], ("Ada", "ADA"))
SAMPLES = {
    "InfiniteBench, choices": (
        "longbook_choice_eng.jsonl",
        [INFINITE | {"answer": ["the attic"]}, INFINITE | {"id": 1, "answer": ["the yard", "D"]}],
        [("0", ATTIC, ASKED, ("B. the attic",)), ("1", ATTIC, ASKED, ("D. the yard",))],
    ),
    "InfiniteBench": (
        "longbook_qa_eng.jsonl",
        [INFINITE | {"answer": ["Ada", "ADA"], "options": []}],
        [FREE],
    ),
    "L-Eval, letters": (
        "coursera.jsonl",
        [LEVAL | {"instructions": [EXAM, EXAM], "outputs": ["B", "AC"]}],
        [
            ("1-1", ATTIC, EXAM, ("B. the attic",)),
            ("1-2", ATTIC, EXAM, ("A. the cellar\nC. the hall",)),
        ],
    ),
    "L-Eval, the choice itself": (
        "quality.jsonl",
        [
            LEVAL
            | {
                "instructions": [WRAPPED],
                "outputs": ["(A) In the cellar\n,where the wine is."],
            }
        ],
        [("1-1", ATTIC, WRAPPED, ("(A) In the cellar,\nwhere the wine is.",))],
    ),
    "BAMBOO, numbers": (
        "altqa_4k.jsonl",
        [
            {
                "content": f"{TASK}Document:\n{ATTIC}\n\nQuestion:\nwhen were they found\n",
                "answer": "1912",
            },
            {
                "content": f"{TASK}Question:\nwhen were they found\n\nDocument:\n{ATTIC}\n",
                "answer": "1912",
            },
        ],
        [("1", ATTIC, NUMBER, ("1912",)), ("2", ATTIC, NUMBER, ("1912",))],
    ),
    "BAMBOO, speakers": (
        "meetingpred_4k.jsonl",
        [{"content": MEETING, "answer": "Ben"}],
        [
            (
                "1",
                MEETING,
                'Which of the speakers says this at the end of the meeting: "Yes. I am ready."',
                ("Ben",),
            )
        ],
    ),
    "DocFinQA": (
        "DocFinQA/test.json",
        [
            [
                {"Context": ATTIC, "Question": q, "Answer": answer}
                for q, answer in (("Where?", "here"), ("Who?", "12"))
            ]
        ],
        [("1", ATTIC, "Where?", ("here",)), ("2", ATTIC, "Who?", ("12",))],
    ),
    "MuLD": (
        "character_id_test.json",
        SCRIPTS,
        [
            (
                "1",
                "INT. HOUSE - DAY\nADA: Who?",
                f"Is Ada a hero or a villain?\n{CLASSES}",
                ("A. Hero",),
            ),
            (
                "2",
                "EXT. YARD\nBEN: Me!",
                f"Is Ben a hero or a villain?\n{CLASSES}",
                ("B. Villain/Antagonist",),
            ),
        ],
    ),
}


@pytest.mark.parametrize(("file", "rows", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_samples(tmp_path, file, rows, expected):
    one = read_one(write_rows(tmp_path / file, rows))
    assert shown(one) == expected
    assert one.multiple_choice or not any(question.choices for question in one.questions)
    assert all(
        answer.split("\n")[0] in "\n".join(q.choices)
        for q in one.questions
        for answer in q.answers
        if q.choices
    )


def test_what_suites_have_of_their_own(tmp_path):
    row = {
        "id": 0,
        "context": "$$MASK$$: Who is there?\nBEN: It is me.",
        "input": "",
        "answer": ["ADA"],
        "options": [],
    }
    one = read_one(
        write_rows(
            tmp_path / "longdialogue_qa_eng.jsonl",
            [row, row | {"id": 1, "input": "Which name is masked?"}],
        )
    )
    assert (
        "replaced by $$MASK$$" in one.questions[0].question
        and one.questions[1].question == "Which name is masked?"
    )
    assert {question.category for question in one.questions} == {"conversational"}
    rows = [
        LEVAL | {"instructions": ["Where?", "Who?"], "outputs": ["in the attic", last]}
        for last in ("Ada", "Ada L.")
    ]
    rows.insert(
        1, LEVAL | {"instructions": ["Why?"], "outputs": ["Nobody knows."], "input": CELLAR}
    )
    assert len(read_one(write_rows(tmp_path / "financial_qa.jsonl", rows)).questions) == 5
    path = write_rows(tmp_path / "scientific_qa.jsonl", rows)
    once = read_one(path)
    assert [one[0] for one in shown(once)] == ["1-1", "1-2", "2-1", "3-2"]
    assert once.notes == (
        f"repeated questions: 1 left out, the first: {path}, line 3",
        "4 questions; paper E has 161",
    )
    tab = (
        '{"question": "Where\tto?", "options": ["A. up", "B. down"], "answer": "A", "content":'
        ' "Up."}'
    )
    path = write_rows(tmp_path / "paperqa_16k.jsonl", [tab, '{"question": "a "b"}', BAMBOO])
    one = read_one(path)
    assert one.questions[0].question == "Where\tto?\nA. up\nB. down"
    assert one.notes[0] == f"lines that are not JSON: 1 left out, the first: {path}, line 2"


def test_bamboo_faults_of_options(tmp_path):
    rows = [
        BAMBOO | {"options": [*CHOICES, "The letters are in the attic."]},
        BAMBOO | {"options": ["The letters are in the attic."]},
        BAMBOO | {"options": ["the cellar", *CHOICES[1:]]},
        BAMBOO | {"answer": "E"},
        BAMBOO | {"options": [option.replace(".", ":") for option in CHOICES], "answer": "D"},
    ]
    path = write_rows(tmp_path / "meetingqa_4k.jsonl", rows)
    one = read_one(path)
    assert [question.answers for question in one.questions] == [("B. the attic",), ("D: the yard",)]
    assert (
        one.questions[0].choices == tuple(CHOICES)
        and one.questions[0].question == ASKED
        and one.multiple_choice
    )
    assert one.notes[:2] == (
        f"texts after the options: 1 left out, the first: {path}, line 1",
        f"questions without usable options: 3 left out, the first: {path}, line 2",
    )


MEETINGS = "elitr-bench-qa_test2.json"
QUESTION = {
    "id": "1",
    "question-type": "who",
    "answer-position": "B",
    "question": "Who speaks?",
    "groundtruth-answer": "PERSON2",
}


def test_elitr_transcripts_of_both_layouts(tmp_path):
    meetings = [
        {"id": f"meeting_en_test2_00{i}", "questions": [QUESTION, QUESTION | {"id": "2"}]}
        for i in (1, 2)
    ]
    path = write_rows(tmp_path / "data" / MEETINGS, [{"split": "test2", "meetings": meetings}])
    corpus = "ELITR-minuting-corpus/test2/meeting_en_test2_002"
    write_files(
        tmp_path,
        {
            "data/meeting_en_test2_001.txt": "(PERSON2) Hello.\n",
            f"{corpus}/transcript_MAN2_annot.txt": "(PERSON2) Good-bye.\n",
            f"{corpus}/minutes.txt": "nothing\n",
        },
    )
    one = read_one(tmp_path)
    assert shown(one)[::2] == [
        ("meeting_en_test2_001-1", "(PERSON2) Hello.\n", "Who speaks?", ("PERSON2",)),
        ("meeting_en_test2_002-1", "(PERSON2) Good-bye.\n", "Who speaks?", ("PERSON2",)),
    ]
    assert (one.name, one.license, len(one.documents)) == ("ELITR_Bench_QA", "CC-BY-4.0", 2)
    with pytest.raises(ReadError, match="'meeting_en_test2_002'"):
        list(read_qa_sets(path))


PAGE = Path(__file__).parents[4] / "docs" / "qa.md"


def test_counts_of_table_7():
    choices = sum(one.points for one in SETS.values() if one.multiple_choice)
    assert (len(SETS), sum(one.points for one in SETS.values()), choices) == (41, 5735, 1207)
    assert {one.suite for one in SETS.values()} == set(SUITES)
    assert all(suite.layout is not None for suite in SUITES.values() if suite.fields == Fields())
    assert len({(one.suite, one.task) for one in SETS.values()}) == len(SETS)


def test_the_page_lists_every_set():
    page = PAGE.read_text(encoding="utf-8")
    for one in SETS.values():
        assert f"{one.name} {one.points}" in page, one.name
    for name, suite in SUITES.items():
        assert re.search(
            rf"^\| {name} \|.*{suite.source}.* \| {suite.license or 'none stated'} \|", page, re.M
        ), name


def test_the_pages_python_reads_sets_and_writes_their_documents(tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "qa" / "qasper.jsonl", [ROW])
    monkeypatch.chdir(tmp_path)
    exec(
        "\n".join(
            re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        ),
        {},
    )
    assert capsys.readouterr().out == "qasper 1 1 MIT 1 questions; paper E has 200\n"
    assert json.loads((tmp_path / "excluded.jsonl").read_text()) == {"text": ATTIC}


DOUBLED = f"Document:\n{ATTIC}\nQuestion:\na\nQuestion:\nb"


@pytest.mark.parametrize(
    ("file", "rows", "named"),
    [
        (
            "qasper.jsonl",
            [ROWS[2], ROWS[0] | {"answers": None}],
            'line 2: .*"answers", got NoneType',
        ),
        ("qasper.jsonl", [ROWS[2], ROWS[0] | {"answers": []}], "line 2: the answer is empty"),
        ("house.jsonl", [OWN, OWN | {"choices": ["a", "b"]}], "1 of 2 questions have choices"),
        ("house.jsonl", [OWN, OWN | {"category": "legal"}], "line 2: the category is 'legal'"),
        ("house.jsonl", [OWN, OWN | {"document": " \n"}], "line 2: the document is empty"),
        ("house.jsonl", [OWN, OWN | {"question": "a \ud83d"}], "line 2 .*D83D"),
        ("house.jsonl", [OWN, OWN | {"id": "1"}], "the questions of house: two have the id '1'"),
        (
            "longbook_choice_eng.jsonl",
            [INFINITE | {"answer": ["the roof"]}],
            r"line 1: .*'the roof'",
        ),
        (
            "tpo.jsonl",
            [LEVAL | {"instructions": [EXAM], "outputs": ["E"]}],
            "line 1, question 1: .*'E'",
        ),
        (
            "tpo.jsonl",
            [LEVAL | {"instructions": ["Where?\nB. the attic\nC. the hall"], "outputs": ["B"]}],
            "question 1: .*'B'",
        ),
        (
            "tpo.jsonl",
            [LEVAL | {"instructions": ["a", "b"], "outputs": ["c"]}],
            "line 1: 2 instructions and 1 outputs",
        ),
        ("altqa_4k.jsonl", [{"content": DOUBLED, "answer": "1"}], 'line 1: .*"Question:"'),
        ("meetingpred_4k.jsonl", [{"content": ATTIC, "answer": "Ben"}], 'line 1: .*"said by"'),
        (
            "character_id_test.json",
            [{"input": "INT. HOUSE\nADA: Who?", "output": ["Hero"]}],
            r'line 1: .*"\?"',
        ),
        (MEETINGS, [{"meetings": ["?"]}], "meetings, item 0: .*got str"),
        (MEETINGS, [{"meetings": [{"id": "../m", "questions": []}]}], r"'\.\./m'"),
        (
            MEETINGS,
            [{"meetings": [{"id": "m", "questions": [{"id": "1"}]}]}],
            "item 0, question 1: .*NoneType",
        ),
        (
            "DocFinQA/test.json",
            [[{"Context": ATTIC, "Question": "?", "Answer": "a"}, "row"]],
            "item 1: .*got str",
        ),
        ("DocFinQA/test.json", [[]], "there are none"),
        ("mambaretriever_test.json", [{"quality": {"c": []}}], "json, quality, 'c': .*got list"),
    ],
)
def test_rows_of_another_form(tmp_path, file, rows, named):
    write_rows(tmp_path / "m.txt", ["text"])
    path = write_rows(tmp_path / file, rows)
    with pytest.raises((InputError, ReadError), match=named):
        list(read_qa_sets(path))
