"""The layouts of suites, a few rows of our own in each: InfiniteBench, L-Eval, BAMBOO, MuLD and ELITR-Bench."""

import json

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.loading import read_qa_sets
from tests.helpers.qa_files import ATTIC, CELLAR, read_one, shown, write_rows

PLACES = ["the cellar", "the attic", "the hall", "the yard"]


def test_infinitebench_choices(tmp_path):
    row = {"id": 0, "context": ATTIC, "input": "Where are the letters?", "options": PLACES}
    rows = [row | {"answer": ["the attic"]}, row | {"id": 1, "answer": ["the yard", "D"]}, row | {"id": 2, "answer": "the hall"}]
    one = read_one(write_rows(tmp_path / "longbook_choice_eng.jsonl", rows))
    assert one.multiple_choice and one.suite == "InfiniteBench" and len(one.documents) == 1
    assert [question.answers for question in one.questions] == [("B. the attic",), ("D. the yard",), ("C. the hall",)]
    assert one.questions[0].choices == ("A. the cellar", "B. the attic", "C. the hall", "D. the yard")
    asked = "Where are the letters?\nA. the cellar\nB. the attic\nC. the hall\nD. the yard"
    assert {question.question for question in one.questions} == {asked}


def test_infinitebench_an_answer_that_is_no_option(tmp_path):
    row = {"id": 0, "context": ATTIC, "input": "Where?", "options": PLACES, "answer": ["the roof"]}
    with pytest.raises(InputError, match=r"line 1: the answers are \['the roof'\]; expected some of the choices \['the cellar'"):
        read_one(write_rows(tmp_path / "longbook_choice_eng.jsonl", [row]))


def test_infinitebench_free_answers(tmp_path):
    row = {"id": 3, "context": ATTIC, "input": "Who found the letters?", "answer": ["Ada", "ADA"], "options": []}
    assert shown(read_one(write_rows(tmp_path / "longbook_qa_eng.jsonl", [row]))) == [
        ("3", ATTIC, "Who found the letters?", ("Ada", "ADA"))
    ]


def test_infinitebench_masked_names(tmp_path):
    row = {"id": 0, "context": "$$MASK$$: Who is there?\nBEN: It is me.", "input": "", "answer": ["ADA"], "options": []}
    rows = [row, row | {"id": 1, "input": "Which name is masked?"}]
    one = read_one(write_rows(tmp_path / "longdialogue_qa_eng.jsonl", rows))
    assert "replaced by $$MASK$$. Which character is it?" in one.questions[0].question
    assert one.questions[1].question == "Which name is masked?"
    assert {question.category for question in one.questions} == {"conversational"}


CHOICES = "A. the cellar\nB. the attic\nC. the hall\nD. the yard"


def row(questions, answers, text=ATTIC):
    return {"instructions": questions, "outputs": answers, "input": text, "source": "made up", "evaluation": "exam"}


def test_leval_letters(tmp_path):
    questions = [f"Question 1. A. Lovelace: where are the letters?\n{CHOICES}", f"Where are\nno letters?\n{CHOICES}"]
    one = read_one(write_rows(tmp_path / "coursera.jsonl", [row(questions, ["B", "AC"])]))
    assert [question.answers for question in one.questions] == [("B. the attic",), ("A. the cellar\nC. the hall",)]
    assert [question.choices for question in one.questions] == [tuple(CHOICES.split("\n"))] * 2
    assert [question.question for question in one.questions] == questions
    assert [question.id for question in one.questions] == ["1-1", "1-2"] and len(one.documents) == 1


def test_leval_options_as_answers(tmp_path):
    question = "Where are the letters?\n\n (A) In the cellar,\nwhere the wine is.\n (B) In the attic"
    one = read_one(write_rows(tmp_path / "quality.jsonl", [row([question], ["(A) In the cellar\n,where the wine is."])]))
    assert one.questions[0].answers == ("(A) In the cellar,\nwhere the wine is.",)
    assert one.questions[0].choices == ("(A) In the cellar,\nwhere the wine is.", "(B) In the attic")


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        (f"Where?\n{CHOICES}", "E", "line 1, question 1: the right choice is 'E'; expected one or more of A, B, C, D"),
        ("Where?\nB. the attic\nC. the hall", "B", "line 1, question 1: the right choice is 'B'; expected"),
    ],
)
def test_leval_without_a_right_choice(tmp_path, question, answer, message):
    with pytest.raises(InputError, match=message):
        read_one(write_rows(tmp_path / "tpo.jsonl", [row([question], [answer])]))


def test_leval_repeats_as_in_paper_e(tmp_path):
    rows = [row(["Where?", "Who?"], ["in the attic", "Ada"]), row(["Why?"], ["Nobody knows."], CELLAR)]
    rows += [row(["Where?", "Who?"], ["in the attic", "Ada L."])]
    free = read_one(write_rows(tmp_path / "financial_qa.jsonl", rows))
    assert len(free.questions) == 5 and len(free.documents) == 2
    once = read_one(write_rows(tmp_path / "scientific_qa.jsonl", rows))
    assert [one[0] for one in shown(once)] == ["1-1", "1-2", "2-1", "3-2"]
    place = tmp_path / "scientific_qa.jsonl"
    assert once.notes == (f"repeated questions: 1 left out, the first: {place}, line 3", "4 questions; paper E has 161")


def test_leval_has_as_many_outputs_as_instructions(tmp_path):
    with pytest.raises(InputError, match="line 1: 2 instructions and 1 outputs; expected an output for each"):
        read_one(write_rows(tmp_path / "tpo.jsonl", [row(["a", "b"], ["c"])]))


TASK = "Answer with a number, from the document given below.\n\n"
OPTIONS = ["A. the cellar", "B. the attic", "C. the hall", "D. the yard"]
CHOICE = {"question": "Where are the letters?", "evidence": "...", "options": OPTIONS, "answer": "B", "content": ATTIC}


def test_bamboo_numbers(tmp_path):
    before = {"content": f"{TASK}Document:\n{ATTIC}\n\nQuestion:\nwhen were they found\n", "answer": "1912"}
    after = {"content": f"{TASK}Question:\nwhen were they found\n\nDocument:\n{ATTIC}\n", "answer": "1912"}
    one = read_one(write_rows(tmp_path / "altqa_4k.jsonl", [before, after]))
    question = "when were they found\nThe answer is a number."
    assert shown(one) == [("1", ATTIC, question, ("1912",)), ("2", ATTIC, question, ("1912",))]


def test_bamboo_a_text_without_its_parts(tmp_path):
    content = f"Document:\n{ATTIC}\nQuestion:\na\nQuestion:\nb"
    with pytest.raises(InputError, match='line 1: expected one line "Document:" and one line "Question:" in "content"'):
        read_one(write_rows(tmp_path / "altqa_4k.jsonl", [{"content": content, "answer": "1"}]))


def test_bamboo_speakers(tmp_path):
    meeting = '"Shall we begin?" said by Ada\n"Yes. I am ready." said by '
    one = read_one(write_rows(tmp_path / "meetingpred_4k.jsonl", [{"content": meeting, "answer": "Ben"}]))
    asked = 'Which of the speakers says this at the end of the meeting: "Yes. I am ready."'
    assert shown(one) == [("1", meeting, asked, ("Ben",))]
    with pytest.raises(InputError, match='line 1: expected "content" to end in "said by", got'):
        read_one(write_rows(tmp_path / "meetingpred_4k.jsonl", [{"content": ATTIC, "answer": "Ben"}]))


def test_bamboo_faults_of_options(tmp_path):
    rows = [
        CHOICE,
        CHOICE | {"options": [*OPTIONS, "The letters are in the attic."]},
        CHOICE | {"options": ["The letters are in the attic."]},
        CHOICE | {"options": ["the cellar", *OPTIONS[1:]]},
        CHOICE | {"answer": "E"},
        CHOICE | {"options": [option.replace(".", ":") for option in OPTIONS], "answer": "D"},
    ]
    path = write_rows(tmp_path / "meetingqa_4k.jsonl", rows)
    one = read_one(path)
    assert [question.answers for question in one.questions] == [("B. the attic",), ("B. the attic",), ("D: the yard",)]
    assert one.questions[1].choices == tuple(OPTIONS) and one.multiple_choice
    assert one.questions[1].question == "\n".join(["Where are the letters?", *OPTIONS])
    assert one.notes == (
        f"texts after the options: 1 left out, the first: {path}, line 2",
        f"questions without usable options: 3 left out, the first: {path}, line 3",
        "3 questions; paper E has 86",
    )


def test_bamboo_faults_of_lines(tmp_path):
    tab = '{"question": "Where\tto?", "options": ["A. up", "B. down"], "answer": "A", "content": "Up."}'
    path = write_rows(tmp_path / "paperqa_16k.jsonl", [tab, '{"question": "a "b"}', CHOICE])
    one = read_one(path)
    assert one.questions[0].question == "Where\tto?\nA. up\nB. down"
    assert one.notes[0] == f"lines that are not JSON: 1 left out, the first: {path}, line 2"
    with pytest.raises(InputError, match="line 1: expected an object in braces, got list"):
        read_one(write_rows(path, ["[]", CHOICE]))
    with pytest.raises(InputError, match="paperqa_16k has no questions"):
        read_one(write_rows(path, ["no JSON"]))


SCRIPTS = [
    {"input": "Is Ada a hero or a villain? INT. HOUSE - DAY\nADA: Who?", "output": ["Hero"], "metadata": ""},
    {"input": "Is Ben a hero or a villain?\nEXT. YARD\nBEN: Me!", "output": "Villain/Antagonist"},
]


def test_muld(tmp_path):
    one = read_one(write_rows(tmp_path / "character_id_test.json", SCRIPTS))
    choices = "A. Hero\nB. Villain/Antagonist"
    assert shown(one) == [
        ("1", "INT. HOUSE - DAY\nADA: Who?", f"Is Ada a hero or a villain?\n{choices}", ("A. Hero",)),
        ("2", "EXT. YARD\nBEN: Me!", f"Is Ben a hero or a villain?\n{choices}", ("B. Villain/Antagonist",)),
    ]
    assert one.multiple_choice and (one.name, one.license) == ("muld_CAC", "")


def test_muld_parquet_of_the_hub(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "muld_Character_Archetype_Classification" / "data"
    folder.mkdir(parents=True)
    rows = [SCRIPTS[0], SCRIPTS[1] | {"output": ["Villain/Antagonist"]}]
    for split in ("train", "test"):
        parquet.write_table(arrow.Table.from_pylist(rows[: 1 + (split == "test")]), folder / f"{split}-00000-of-00001.parquet")
    assert len(read_one(tmp_path).questions) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"input": "INT. HOUSE\nADA: Who?", "output": ["Hero"]},
            'line 2: expected "input" to begin with a question that ends in',
        ),
        (
            {"input": "Who? ...", "output": ["Villain/Antagonist"]},
            "every output is 'Villain/Antagonist'; expected several classes",
        ),
    ],
)
def test_muld_malformed(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_one(write_rows(tmp_path / "character_id_test.json", [SCRIPTS[1], row]))


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
    with pytest.raises(ReadError, match=r"data has no transcript meeting_en_test2_002.txt or .*; put the ELITR Minuting Corpus"):
        list(read_qa_sets(path))


@pytest.mark.parametrize(
    ("meetings", "message"),
    [
        (["?"], "meetings, item 1: expected an object in braces, got str"),
        ([{"id": "../m", "questions": []}], "the id of a meeting is '../m'; expected letters, digits, _, - and ."),
        ([{"id": "m", "questions": "?"}], 'meetings, item 1: expected a list of objects as "questions"'),
        ([{"id": "m", "questions": [{"id": "1"}]}], 'item 1, question 1: expected a text as "groundtruth-answer", got the keys'),
    ],
)
def test_elitr_malformed(tmp_path, meetings, message):
    (tmp_path / "m.txt").write_text("text")
    write_meetings(tmp_path, meetings)
    with pytest.raises(InputError, match=message):
        list(read_qa_sets(tmp_path))


def test_elitr_not_json(tmp_path):
    (tmp_path / "elitr-bench-qa_test2.json").write_text("{")
    with pytest.raises(ReadError, match=r"elitr-bench-qa_test2.json is not valid JSON"):
        list(read_qa_sets(tmp_path))
