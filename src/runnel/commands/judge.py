"""`runnel judge`: answers of any origin judged by a language model, and its agreement with people's labels.

FOLDER/judge.jsonl has the verdict of each row, judge.json the counts, replies.sqlite every reply.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.display import print_json, print_text
from runnel.commands.inquiries import AskingOptions, Out, costs, say_notes, show_costs
from runnel.commands.options import Json
from runnel.files import write

if TYPE_CHECKING:
    from runnel.evaluation.qa.inquiry import Inquiry
    from runnel.evaluation.qa.judging import Attempt, Verdict


def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows of question, answers and attempt.")],
    out: Out,
    asking: AskingOptions = AskingOptions(),
    as_json: Json = False,
) -> int:
    """Let a language model judge answers, as `runnel qa` does; with labels by people, measure how they agree.

    FILE is jsonl with "question", "answers" (the true ones), "attempt" (the answer to judge), and for labels "right": true or
    false. Exit code 1: some answers have no verdict yet.
    """
    from runnel.evaluation.qa.inquiry import Inquiry
    from runnel.evaluation.qa.judging import read_attempts

    endpoint, attempts = asking.open(), read_attempts(file)
    with asking.rounds(out, endpoint) as (replies, rounds):
        for _ in rounds:
            inquiry = Inquiry(replies, asking.threads)
            report = _judge_all(inquiry, attempts, out)
    write(out / "judge.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json(report)
    else:
        _show(report)
    say_notes(inquiry, report["unanswered"])
    return 1 if report["unanswered"] else 0


def _judge_all(inquiry: Inquiry, attempts: list[Attempt], out: Path) -> dict[str, Any]:
    """Write the verdict of each attempt, and return the counts."""
    from runnel.evaluation.qa import judging
    from runnel.evaluation.qa.prompts import JUDGMENTS

    replies = inquiry.replies

    def verdicts(one: Attempt, notes: list[str]) -> list[Verdict]:
        choice = one.multiple_choice
        return judging.judge(
            replies, replies.endpoint, one.question, one.answers, one.attempt, multiple_choice=choice, notes=notes
        )

    rows, labeled = [], []
    for one, found in inquiry.run(verdicts, attempts):
        verdict = None if found is None else judging.any_yes(found)
        rows.append({"id": one.id, "answered": found is not None, "verdicts": found or [], "correct": verdict})
        if found is not None and one.right is not None:
            labeled.append((one.right, verdict))
    write(out / "judge.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return {
        "llm_model": replies.endpoint.model,
        "answers": len(rows),
        "correct": sum(row["correct"] is True for row in rows),
        "unreadable": sum(bool(row["answered"]) and row["correct"] is None for row in rows),
        "unanswered": sum(not row["answered"] for row in rows),
        "agreement": judging.agreement(*zip(*labeled, strict=True)) if labeled else None,
        "notes": dict(inquiry.notes.most_common()),
        "cost": costs(replies, judgments=JUDGMENTS),
    }


def _show(report: dict[str, Any]) -> None:
    judged = report["answers"] - report["unreadable"] - report["unanswered"]
    print_text(f"{report['correct']:,} of {judged:,} answers are right, by {report['llm_model']}")
    if (found := report["agreement"]) is not None:
        each = ", ".join(f"{name} {value:.3f}" for name, value in found["f1"].items() if value is not None)
        equal = f"{found['accuracy']:.1%} of verdicts equal"
        print_text(f"agreement with {found['labeled']:,} labels: macro F1 {found['macro_f1']:.3f} ({each}), {equal}")
    show_costs(report["cost"])
