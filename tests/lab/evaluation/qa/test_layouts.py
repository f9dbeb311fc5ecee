"""A sample of each suite's layout, and what is wrong with published files: left out with a note, or an error with its place."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.errors import InputError, ReadError
from runnel.lab.evaluation.qa.loading import read_qa_sets
from tests.helpers.qa_files import ATTIC, CELLAR, read_one, shown, write_rows

PLACES = ["the cellar", "the attic", "the hall", "the yard"]
CHOICES = [f"{letter}. {place}" for letter, place in zip("ABCD", PLACES, strict=True)]
INFINITE = {"id": 0, "context": ATTIC, "input": "Where are the letters?", "options": PLACES}
LEVAL = {"input": ATTIC, "source": "made up", "evaluation": "exam"}
EXAM = "Question 1. A. Lovelace: where are the letters?\n" + "\n".join(CHOICES)
WRAPPED = "Where are the letters?\n\n (A) In the cellar,\nwhere the wine is.\n (B) In the attic"
TASK = "Answer with a number, from the document given below.\n\n"
MEETING = '"Shall we begin?" said by Ada\n"Yes. I am ready." said by '
BAMBOO = {"question": "Where are the letters?", "evidence": "...", "options": CHOICES, "answer": "B", "content": ATTIC}
SCRIPTS = [
    {"input": "Is Ada a hero or a villain? INT. HOUSE - DAY\nADA: Who?", "output": ["Hero"], "metadata": ""},
    {"input": "Is Ben a hero or a villain?\nEXT. YARD\nBEN: Me!", "output": "Villain/Antagonist"},
]
CLASSES = "A. Hero\nB. Villain/Antagonist"
ASKED = "\n".join([INFINITE["input"], *CHOICES])
NUMBER = "when were they found\nThe answer is a number."
SAMPLES = {
    "InfiniteBench, choices": (
        "longbook_choice_eng.jsonl",
        [INFINITE | {"answer": ["the attic"]}, INFINITE | {"id": 1, "answer": ["the yard", "D"]}],
        [("0", ATTIC, ASKED, ("B. the attic",)), ("1", ATTIC, ASKED, ("D. the yard",))],
    ),
    "InfiniteBench": (
        "longbook_qa_eng.jsonl",
        [INFINITE | {"answer": ["Ada", "ADA"], "options": []}],
        [("0", ATTIC, INFINITE["input"], ("Ada", "ADA"))],
    ),
    "L-Eval, letters": (
        "coursera.jsonl",
        [LEVAL | {"instructions": [EXAM, EXAM], "outputs": ["B", "AC"]}],
        [("1-1", ATTIC, EXAM, ("B. the attic",)), ("1-2", ATTIC, EXAM, ("A. the cellar\nC. the hall",))],
    ),
    "L-Eval, the choice itself": (
        "quality.jsonl",
        [LEVAL | {"instructions": [WRAPPED], "outputs": ["(A) In the cellar\n,where the wine is."]}],
        [("1-1", ATTIC, WRAPPED, ("(A) In the cellar,\nwhere the wine is.",))],
    ),
    "BAMBOO, numbers": (
        "altqa_4k.jsonl",
        [
            {"content": f"{TASK}Document:\n{ATTIC}\n\nQuestion:\nwhen were they found\n", "answer": "1912"},
            {"content": f"{TASK}Question:\nwhen were they found\n\nDocument:\n{ATTIC}\n", "answer": "1912"},
        ],
        [("1", ATTIC, NUMBER, ("1912",)), ("2", ATTIC, NUMBER, ("1912",))],
    ),
    "BAMBOO, speakers": (
        "meetingpred_4k.jsonl",
        [{"content": MEETING, "answer": "Ben"}],
        [("1", MEETING, 'Which of the speakers says this at the end of the meeting: "Yes. I am ready."', ("Ben",))],
    ),
    "MuLD": (
        "character_id_test.json",
        SCRIPTS,
        [
            ("1", "INT. HOUSE - DAY\nADA: Who?", f"Is Ada a hero or a villain?\n{CLASSES}", ("A. Hero",)),
            ("2", "EXT. YARD\nBEN: Me!", f"Is Ben a hero or a villain?\n{CLASSES}", ("B. Villain/Antagonist",)),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "rows", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_samples(tmp_path, file, rows, expected):
    one = read_one(write_rows(tmp_path / file, rows))
    assert shown(one) == expected
    assert one.multiple_choice or not any(question.choices for question in one.questions)
    assert all(answer.split("\n")[0] in "\n".join(q.choices) for q in one.questions for answer in q.answers if q.choices)


def test_infinitebench_masked_names(tmp_path):
    row = {"id": 0, "context": "$$MASK$$: Who is there?\nBEN: It is me.", "input": "", "answer": ["ADA"], "options": []}
    one = read_one(write_rows(tmp_path / "longdialogue_qa_eng.jsonl", [row, row | {"id": 1, "input": "Which name is masked?"}]))
    assert "replaced by $$MASK$$" in one.questions[0].question and one.questions[1].question == "Which name is masked?"
    assert {question.category for question in one.questions} == {"conversational"}


def test_leval_repeats_as_in_paper_e(tmp_path):
    rows = [LEVAL | {"instructions": ["Where?", "Who?"], "outputs": ["in the attic", last]} for last in ("Ada", "Ada L.")]
    rows.insert(1, LEVAL | {"instructions": ["Why?"], "outputs": ["Nobody knows."], "input": CELLAR})
    assert len(read_one(write_rows(tmp_path / "financial_qa.jsonl", rows)).questions) == 5
    path = write_rows(tmp_path / "scientific_qa.jsonl", rows)
    once = read_one(path)
    assert [one[0] for one in shown(once)] == ["1-1", "1-2", "2-1", "3-2"]
    assert once.notes == (f"repeated questions: 1 left out, the first: {path}, line 3", "4 questions; paper E has 161")


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
    assert one.questions[0].choices == tuple(CHOICES) and one.questions[0].question == ASKED and one.multiple_choice
    assert one.notes[:2] == (
        f"texts after the options: 1 left out, the first: {path}, line 1",
        f"questions without usable options: 3 left out, the first: {path}, line 2",
    )


def test_bamboo_faults_of_lines(tmp_path):
    tab = '{"question": "Where\tto?", "options": ["A. up", "B. down"], "answer": "A", "content": "Up."}'
    path = write_rows(tmp_path / "paperqa_16k.jsonl", [tab, '{"question": "a "b"}', BAMBOO])
    one = read_one(path)
    assert one.questions[0].question == "Where\tto?\nA. up\nB. down"
    assert one.notes[0] == f"lines that are not JSON: 1 left out, the first: {path}, line 2"


def test_muld_parquet_of_the_hub(tmp_path):
    folder = tmp_path / "muld_Character_Archetype_Classification" / "data"
    folder.mkdir(parents=True)
    rows = [SCRIPTS[0], SCRIPTS[1] | {"output": ["Villain/Antagonist"]}]
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows[: 1 + (split == "test")]), folder / f"{split}-00000-of-00001.parquet")
    assert len(read_one(tmp_path).questions) == 2


QUESTION = {"id": "1", "question-type": "who", "answer-position": "B", "question": "Who speaks?", "groundtruth-answer": "PERSON2"}


def write_meetings(folder, meetings):
    folder.mkdir(exist_ok=True)
    path = folder / "elitr-bench-qa_test2.json"
    path.write_text(json.dumps({"split": "test2", "meetings": meetings}))
    return path


def test_elitr_transcripts_of_both_layouts(tmp_path):
    meetings = [{"id": f"meeting_en_test2_00{i}", "questions": [QUESTION, QUESTION | {"id": "2"}]} for i in (1, 2)]
    path = write_meetings(tmp_path / "data", meetings)
    (tmp_path / "data" / "meeting_en_test2_001.txt").write_text("(PERSON2) Hello.")
    corpus = tmp_path / "ELITR-minuting-corpus" / "test2" / "meeting_en_test2_002"
    corpus.mkdir(parents=True)
    (corpus / "transcript_MAN2_annot.txt").write_text("(PERSON2) Good-bye.")
    (corpus / "minutes.txt").write_text("nothing")
    one = read_one(tmp_path)
    assert shown(one)[::2] == [
        ("meeting_en_test2_001-1", "(PERSON2) Hello.", "Who speaks?", ("PERSON2",)),
        ("meeting_en_test2_002-1", "(PERSON2) Good-bye.", "Who speaks?", ("PERSON2",)),
    ]
    assert (one.name, one.license, len(one.documents)) == ("ELITR_Bench_QA", "CC-BY-4.0", 2)
    with pytest.raises(ReadError, match="'meeting_en_test2_002'"):
        list(read_qa_sets(path))


@pytest.mark.parametrize(
    ("file", "row", "named"),
    [
        ("longbook_choice_eng.jsonl", INFINITE | {"answer": ["the roof"]}, r"line 1: .*'the roof'"),
        ("tpo.jsonl", LEVAL | {"instructions": [EXAM], "outputs": ["E"]}, "line 1, question 1: .*'E'"),
        ("tpo.jsonl", LEVAL | {"instructions": ["Where?\nB. the attic\nC. the hall"], "outputs": ["B"]}, "question 1: .*'B'"),
        ("tpo.jsonl", LEVAL | {"instructions": ["a", "b"], "outputs": ["c"]}, "line 1: 2 instructions and 1 outputs"),
        (
            "altqa_4k.jsonl",
            {"content": f"Document:\n{ATTIC}\nQuestion:\na\nQuestion:\nb", "answer": "1"},
            'line 1: .*"Question:"',
        ),
        ("meetingpred_4k.jsonl", {"content": ATTIC, "answer": "Ben"}, 'line 1: .*"said by"'),
        ("paperqa_16k.jsonl", [], "line 1: .*got list"),
        ("character_id_test.json", {"input": "INT. HOUSE\nADA: Who?", "output": ["Hero"]}, r'line 1: .*"\?"'),
    ],
)
def test_a_row_of_another_form(tmp_path, file, row, named):
    with pytest.raises(InputError, match=named):
        read_one(write_rows(tmp_path / file, [row]))


@pytest.mark.parametrize(
    ("meetings", "named"),
    [
        (["?"], "meetings, item 0: .*got str"),
        ([{"id": "../m", "questions": []}], r"'\.\./m'"),
        ([{"id": "m", "questions": "?"}], "meetings, item 0: 'questions' is"),
        ([{"id": "m", "questions": [{"id": "1"}]}], "item 0, question 1: .*NoneType"),
    ],
)
def test_elitr_malformed(tmp_path, meetings, named):
    (tmp_path / "m.txt").write_text("text")
    write_meetings(tmp_path, meetings)
    with pytest.raises(InputError, match=named):
        list(read_qa_sets(tmp_path))
