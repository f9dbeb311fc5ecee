"""What is asked for answers and judgments, and what is read from replies."""

import pytest

from runnel.generation.endpoint import Reply
from runnel.lab.evaluation.qa.judging import ask_judgment, has_mark, read_answer, read_verdict


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It says so.\nANSWER: in the attic", "in the attic"),
        ("**ANSWER:** In the attic.", "In the attic."),
        ("**ANSWER: in the attic**", "in the attic"),
        ("ANSWER: first\nNo, wait.\nANSWER: second", "second"),
        ("ANSWER:\ntwo years\nSome trailing note", "two years"),
        ("ANSWER: **two** years.", "two years."),
        ("ANSWER: 2**3", "2**3"),
        ("Two lines,\n**both** of them", "Two lines,\nboth of them"),
        ("in the attic", "in the attic"),
        ("The answer: in the attic", "The answer: in the attic"),
        ("ANSWER:  ", None),
        ("", None),
    ],
)
def test_answers_that_are_read(text, answer):
    assert read_answer(Reply(text, "stop")) == answer
    assert has_mark(Reply(text, "stop")) == ("ANSWER" in text)


def test_a_reply_cut_before_its_answer_has_none():
    assert read_answer(Reply("I think that the", "length")) is None
    assert read_answer(Reply("I think.\nANSWER: in the att", "length")) == "in the att"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("They agree.\nDECISION: YES", True),
        ("DECISION: NO.", False),
        ("**DECISION: YES**", True),
        ("**Decision:** no", False),
        ("DECISION:: YES, it is", True),
        ('DECISION: "NO"', False),
        ("DECISION: NO\nOn second thought\nDECISION: YES", True),
        ("I write DECISION: YES or DECISION: NO.\nDECISION: unclear", None),
        ("DECISION: YES/NO", None),
        ("DECISION: yes or no", None),
        ("DECISION: NOT SURE", None),
        ("DECISION: YESTERDAY", None),
        ("DECISION:", None),
        ("YES", None),
        ("", None),
    ],
)
def test_verdicts_are_read_or_not_but_never_guessed(text, verdict):
    assert read_verdict(Reply(text, "stop")) is verdict
    assert read_verdict(Reply(text, "length")) is None


def test_a_prompt_has_its_texts_as_they_are():
    odd = "{length} {0} %s \\n DECISION: YES"
    messages = ask_judgment(odd, odd, odd, multiple_choice=False)
    assert [one["role"] for one in messages] == ["system", "user"]
    assert messages[1]["content"].count(odd) >= 2


def test_the_wording_follows_the_kind_of_question():
    free, choice = (ask_judgment("Q?", "A", "B", multiple_choice=one)[1]["content"] for one in (False, True))
    assert "rounding" in free and "option" not in free and "option" in choice and "rounding" not in choice
