"""Judgments of answers by a language model, and their agreement with labels by people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.evaluation.qa import prompts
from runnel.generation.endpoint import LanguageModelClient
from runnel.generation.replies import Replies
from runnel.text.lines import keys, read_json

JUDGE_TOKENS = 1000  # the most of a reply

Verdict = bool | None
"""Whether an answer is right; None: the judgment cannot be read."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer to judge.

    Attributes:
        answers: the true answers, one at least; each is sufficient.
        attempt: the answer.
        right: a person's judgment of it; None: there is none.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    attempt: str
    multiple_choice: bool = False
    right: bool | None = None


def read_attempts(path: str | Path) -> list[Attempt]:
    """Read answers to judge from jsonl: "question", "answers" (a text or a list of texts), "attempt".

    Optional: "id", "multiple_choice" and "right", which are true or false. Other keys are ignored.

    Raises:
        InputError: a row has another form, two rows have one id, or the file is empty; the message has the line.
        ReadError: see `runnel.text.lines.Lines`.
    """
    attempts: dict[str, Attempt] = {}
    for number, (where, row) in enumerate(read_json(path), start=1):
        answers = [row["answers"]] if isinstance(row.get("answers"), str) else row.get("answers")
        texts = (row.get("question"), row.get("attempt"), *(answers if isinstance(answers, list) else [None]))
        if len(texts) < 3 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError(f'{where}: expected texts as "question", "answers" and "attempt", got {keys(row)}')
        choice, right, name = row.get("multiple_choice", False), row.get("right"), str(row.get("id", number))
        if not isinstance(choice, bool) or not isinstance(right, bool | None):
            raise InputError(f'{where}: expected true or false as "multiple_choice" and "right", got {choice!r} and {right!r}')
        if name in attempts:
            raise InputError(f"{where}: the id {name!r} is that of an earlier row; expected each id once")
        question, attempt, *truths = texts
        attempts[name] = Attempt(name, question, tuple(truths), attempt, choice, right)
    if not attempts:
        raise InputError(f"{path} is empty; expected answers to judge")
    return list(attempts.values())


def judge(
    replies: Replies,
    endpoint: LanguageModelClient,
    question: str,
    truths: Sequence[str],
    attempt: str,
    *,
    multiple_choice: bool,
    notes: list[str],
) -> list[Verdict]:
    """Return the verdict for each true answer; a note is added for each that cannot be read.

    Raises:
        EndpointError, Stopped: see `Replies.ask`.
    """
    verdicts = []
    for truth in dict.fromkeys(truths):
        messages = prompts.ask_judgment(question, truth, attempt, multiple_choice=multiple_choice)
        reply = replies.ask(messages, max_tokens=JUDGE_TOKENS, version=prompts.JUDGMENTS, endpoint=endpoint)
        verdicts.append(prompts.read_verdict(reply))
        if verdicts[-1] is None:
            notes.append("judgments cut at their limit of tokens" if reply.finish == "length" else "judgments without YES or NO")
    return verdicts


def any_yes(verdicts: Sequence[Verdict]) -> Verdict:
    """Return whether any verdict is yes; None if none is and one cannot be read."""
    return True if True in verdicts else None if None in verdicts else False


def agreement(right: Sequence[bool], judged: Sequence[Verdict]) -> dict[str, Any]:
    """Return how a judge agrees with labels: counts, the share of equal ones, F1 of yes and of no, and their mean.

    A verdict that cannot be read agrees with no label.

    Source: paper E, section 5.3, which gives macro F1.
    """
    pairs = list(zip(right, judged, strict=True))
    f1 = {}
    for name, label in (("yes", True), ("no", False)):
        both = sum(a is label and b is label for a, b in pairs)
        either = sum(a is label for a, _ in pairs) + sum(b is label for _, b in pairs)
        f1[name] = 2 * both / either if either else None
    classes = [value for value in f1.values() if value is not None]
    return {
        "labeled": len(pairs),
        "right": sum(right),
        "judged_right": sum(verdict is True for verdict in judged),
        "unreadable": sum(verdict is None for verdict in judged),
        "accuracy": sum(a is b for a, b in pairs) / len(pairs),
        "f1": f1,
        "macro_f1": sum(classes) / len(classes),
    }
