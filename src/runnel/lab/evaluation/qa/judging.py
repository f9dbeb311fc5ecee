"""Judgments of answers by a language model, and their agreement with labels by people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.generation.endpoint import LanguageModelClient
from runnel.json_objects import read_row
from runnel.lab.evaluation.qa import prompts
from runnel.lab.replies import Replies
from runnel.text.lines import read_json

JUDGE_TOKENS = 1000  # the most of a reply

Verdict = bool | None
"""Whether an answer is right; None: the judgment cannot be read."""

Answer = tuple[str, str, str]
"""The set, the question's id, and the text of an answer."""


@dataclass(frozen=True)
class _Label:
    set: str
    question: str
    answer: str
    right: bool


def read_labels(path: str | Path) -> dict[Answer, bool]:
    """Return people's judgments: rows of SET.answers.jsonl, as `runnel lab qa` writes them, with "right": true or false."""
    labels: dict[Answer, bool] = {}
    for where, row in read_json(path):
        if "right" in row:
            one = read_row(_Label, row, where)
            labels[one.set, one.question, one.answer] = one.right
    if not labels:
        raise InputError(f'{path} has no row with "right"; add it to rows of SET.answers.jsonl that a person has judged')
    return labels


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
    """Return the verdict for each true answer; a note is added for each that cannot be read."""
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
