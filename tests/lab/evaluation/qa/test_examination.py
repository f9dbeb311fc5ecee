"""What is read for a question; answers and judgments, by language models that also misbehave."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.exams import follow, mill_set

from runnel.generation.endpoint import Endpoint
from runnel.lab.evaluation.evidence import by_parts
from runnel.lab.evaluation.qa.examination import Exam, by_retrieval, by_windows, join
from runnel.lab.evaluation.qa.loading import QaDocument
from runnel.lab.replies import Inquiry, stored_replies
from runnel.lab.training.mining import bm25_scorer
from runnel.models.folder import BUILT_IN
from runnel.text.dialogue import GAP
from runnel.text.tokenizers import read_tokenizer

TEXT = "One is first. Two is second. Three is third. Four is fourth. Five is fifth."
ONE, TWO, THREE, FOUR, FIVE = [(0, 13), (14, 28), (29, 44), (45, 60), (61, 75)]


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], ""),
        ([THREE], "Three is third."),
        ([TWO, ONE], "One is first. Two is second."),
        ([FIVE, ONE], f"One is first.\n{GAP}\nFive is fifth."),
        ([FOUR, ONE, FIVE], f"One is first.\n{GAP}\nFour is fourth. Five is fifth."),
        ([(0, 44), (14, 28), ONE], "One is first. Two is second. Three is third."),
        ([(0, 28), (14, 44)], "One is first. Two is second. Three is third."),
    ],
)
def test_excerpts_are_in_document_order_with_their_gaps_marked(spans, text):
    assert join(TEXT, spans) == text


TOKENIZER = read_tokenizer(BUILT_IN["pocket"])
BM25 = by_parts(bm25_scorer)
rule = follow  # of `stub`


def found(data, choose):
    pairs = [(one, data.documents[one.document]) for one in data.questions]
    return [(one, len(document.text), choose(one.question, document)) for one, document in pairs]


def examine(stub, folder, data, read, way="excerpts"):
    endpoint = Endpoint(stub.url, "stub", retries=1, timeout_s=0.5)
    with stored_replies(folder, endpoint) as replies:
        inquiry = Inquiry(replies, threads=1)
        return list(Exam(inquiry, endpoint, way).outcomes(data, read)), inquiry


def retrieved(data, top_k=3):
    return found(data, by_retrieval(BM25, top_k))


def prompts(stub):
    return [one["messages"][-1]["content"] for one in stub.asked]


def test_whole_documents_are_read_in_windows_and_the_answers_combined(stub, tmp_path):
    data = mill_set(documents=1, wheels=8)
    read = found(data, by_windows(TOKENIZER, 150, 75))
    parts = len(read[0][2])
    outcomes, _ = examine(stub, tmp_path, data, read, "whole")
    assert all(one.correct for one in outcomes) and parts == 4
    sent = prompts(stub)
    windows = [prompt for prompt in sent if "The document, or a part of it:" in prompt]
    assert (
        len(windows) == 8 * parts
        and sum("readers who each read one part" in prompt for prompt in sent) == 8
    )
    text = data.documents["d0"].text
    shown = [
        prompt.split("a part of it:\n\n")[1].split("\n\nQuestion:")[0] for prompt in windows[:parts]
    ]
    assert all(one in text and len(TOKENIZER.encode(one)) <= 150 for one in shown)
    assert shown[0][:20] == text[:20] and shown[-1][-20:] == text[-20:]
    ends = [text.index(one) + len(one) for one in shown]
    assert all(text.index(b) < a for a, b in zip(ends, shown[1:], strict=False)), (
        "windows overlap: nothing is between two"
    )


def test_a_language_model_copies_what_it_then_reads(stub, tmp_path):
    data = mill_set(documents=1, wheels=8)
    read = found(data, by_windows(TOKENIZER, 150, 75))
    parts = len(read[0][2])
    outcomes, inquiry = examine(stub, tmp_path, data, read, "copied")
    assert all(one.correct for one in outcomes) and not inquiry.notes
    kinds = [
        ("word for word" in prompt, "Sentences of the document" in prompt)
        for prompt in prompts(stub)
    ]
    assert parts > 2 and kinds.count((True, False)) == 8 * parts and kinds.count((False, True)) == 8
    assert {one["max_tokens"] for one in stub.asked} == {2000 // parts, 2000, 1000}
    asked = next(prompt for prompt in prompts(stub) if "Sentences of the document" in prompt)
    assert asked.count("Wheel number 10 was painted red.") == 1, (
        "windows overlap, but what is copied twice is read once"
    )


def test_the_best_excerpts_in_the_order_of_the_document():
    sentences = ((0, 2), (2, 4), (4, 6), (6, 8))
    score = lambda question, document, units: (  # noqa: E731
        np.array(units),
        np.array([0.0, 1.0, 1.0, 2.0]),
    )
    assert by_retrieval(score, 2)("?", QaDocument("d", "abcdefgh", sentences)) == [[(2, 4), (6, 8)]]


def test_every_true_answer_is_judged_and_any_yes_counts(stub, tmp_path):
    data = mill_set(documents=1, wheels=2)
    questions = tuple(replace(one, answers=("scarlet", one.answers[0])) for one in data.questions)
    data = replace(data, questions=questions)
    outcomes, _ = examine(stub, tmp_path, data, retrieved(data))
    assert [(one.verdicts, one.correct, one.f1) for one in outcomes] == [
        ((False, True), True, 1.0)
    ] * 2
    # the answer is elsewhere
    outcomes, _ = examine(stub, tmp_path, data, found(data, lambda question, document: [[(0, 10)]]))
    assert [(one.answer, one.verdicts, one.correct, one.f1) for one in outcomes] == [
        ("unknown", (False, False), False, 0.0)
    ] * 2


@pytest.mark.parametrize("how", ["set", "question"])
def test_multiple_choice_has_its_own_judge_and_no_f1(stub, tmp_path, how):
    data = mill_set(documents=1, wheels=1, multiple_choice=how == "set")
    (question,) = data.questions
    if how == "question":
        data = replace(data, questions=(replace(question, choices=("red", "blue")),))
    (outcome,), _ = examine(stub, tmp_path, data, retrieved(data))
    assert (
        outcome.correct is True
        and outcome.f1 is None
        and "The question is multiple-choice" in prompts(stub)[1]
    )


def test_what_cannot_be_read_is_counted_and_not_guessed(stub, tmp_path):
    data = mill_set(documents=1, wheels=5)
    first, *others = data.questions
    data = replace(data, questions=(replace(first, answers=("scarlet", *first.answers)), *others))
    judged = iter(
        ["DECISION: NO", "They agree.", "DECISION: YES/NO", "DECISION: NO", "DECISION: YES"]
    )
    answers = iter(["ANSWER: red", "red", "ANSWER: ", "ANSWER: red", "ANSWER: red"])
    stub.rule = lambda messages: next(
        judged if "Candidate's answer:" in messages[-1]["content"] else answers
    )
    outcomes, inquiry = examine(stub, tmp_path, data, retrieved(data))
    assert [(one.answer, one.correct, one.f1) for one in outcomes[:3]] == [
        ("red", None, 1.0),
        ("red", None, 0.0),
        (None, False, 0.0),
    ]
    assert [(one.answer, one.correct) for one in outcomes[3:]] == [("red", False), ("red", True)]
    assert dict(inquiry.notes) == {
        "judgments without YES or NO": 2,
        "replies without ANSWER:, which are judged whole": 1,
        "replies without an answer, which count as wrong": 1,
    }
    assert all(one.answered for one in outcomes)


def test_faults_leave_questions_open_until_they_are_asked_again(stub, tmp_path):
    data = mill_set(documents=1, wheels=8)
    read = retrieved(data, 2)
    stub.faults.extend(
        [429, 500, None, "malformed", None, "no text", "slow", None, "cut", "slow", "slow"]
    )
    outcomes, inquiry = examine(stub, tmp_path, data, read)
    state = [(one.answered, one.correct) for one in outcomes]
    # 1 busy twice and then refused: open. 2 a broken reply: open. 3 answered, the judge's reply is
    # broken: open.
    assert (
        state[:3] == [(False, None)] * 3 and inquiry.failure is not None and inquiry.stopped is None
    )
    sent = len(stub.asked)
    again, inquiry = examine(stub, tmp_path, data, read)
    clean, _ = examine(stub, tmp_path / "..", data, read)
    assert all(one.answered for one in again) and inquiry.failure is None
    cut = [a.question for a, b in zip(again, clean, strict=True) if a != b]
    assert len(cut) <= 1 and len(stub.asked) > sent
    sent = len(stub.asked)
    assert examine(stub, tmp_path, data, read)[0] == again and len(stub.asked) == sent, (
        "nothing is asked twice"
    )
