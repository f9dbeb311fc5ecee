"""`runnel label`: the sentences from which true answers follow, chosen by a language model, as evidence for `runnel evaluate`.

FOLDER/SET.evidence.jsonl has the questions with evidence, label.json the counts, replies.sqlite every reply.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.display import Meter, print_json, print_text, say
from runnel.commands.inquiries import AskingOptions, Limit, Out, QaPaths, SetNames, costs, say_notes, show_costs
from runnel.commands.options import Json
from runnel.files import replacing, write

if TYPE_CHECKING:
    from runnel.evaluation.qa.inquiry import Inquiry
    from runnel.evaluation.qa.records import QaQuestion, QaSet


def label(
    paths: QaPaths,
    out: Out,
    only: SetNames = None,
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Leave out longer documents.")] = 120_000,
    asking: AskingOptions = AskingOptions(),
    as_json: Json = False,
) -> int:
    """Let a language model choose the sentences from which the true answers of questions follow.

    The evidence measures sentence retrieval by `runnel evaluate`. Repeat the command after an interruption: no reply is paid for
    twice. Exit code 1: some questions have no reply yet.
    """
    from runnel.evaluation.qa.inquiry import Inquiry
    from runnel.evaluation.qa.loading import read_qa_sets
    from runnel.evaluation.qa.prompts import LABELS

    endpoint = asking.open()
    with asking.rounds(out, endpoint) as (replies, rounds):
        for _ in rounds:
            inquiry = Inquiry(replies, asking.threads)
            sets = [
                _label_set(inquiry, data, limit, max_tokens, out) for path in paths for data in read_qa_sets(path, only or ())
            ]
    notes, cost = dict(inquiry.notes.most_common()), costs(replies, labels=LABELS)
    report: dict[str, Any] = {"llm_model": endpoint.model, "sets": sets, "notes": notes, "cost": cost}
    write(out / "label.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        print_json(report)
    else:
        for one in sets:
            print_text(f"{one['file']}: {one['labeled']:,} of {one['questions']:,} questions with evidence")
        show_costs(report["cost"])
    for one in sets:
        if one["long"]:
            say(f"note: {one['set']}: left out: {one['long']:,} questions about documents of over {max_tokens:,} tokens")
    missing = sum(one["unanswered"] for one in sets)
    say_notes(inquiry, missing)
    return 1 if missing else 0


def _label_set(inquiry: Inquiry, data: QaSet, limit: int | None, max_tokens: int, out: Path) -> dict[str, Any]:
    """Write the questions of a set that have evidence, and return the counts."""
    from runnel.evaluation.qa import labeling

    questions = data.questions[:limit]
    short = _short(data, questions, max_tokens)
    path, labeled, unanswered = out / f"{data.name}.evidence.jsonl", 0, 0
    with Meter("labeling", unit="questions") as meter, replacing(path) as new, new.open("wb") as file:
        for done, (question, labels) in enumerate(labeling.label(inquiry, data, short), start=1):
            unanswered += labels is None
            if labels is not None and labels.spans:
                labeled += 1
                document = data.documents[question.document].text
                row: dict[str, object] = {"id": question.id, "question": question.question, "document": document}
                row |= {"evidence": labels.spans, "answers": question.answers, "sentences": labels.sentences}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            meter(done, len(short))
    counts = {"questions": len(questions), "long": len(questions) - len(short), "labeled": labeled, "unanswered": unanswered}
    return {"set": data.name, "file": str(path), **counts}


def _short(data: QaSet, questions: tuple[QaQuestion, ...], max_tokens: int) -> list[QaQuestion]:
    """Return the questions about documents of at most `max_tokens` tokens."""
    from runnel.models.base import BUILT_IN
    from runnel.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(BUILT_IN["pocket"])
    names = dict.fromkeys(one.document for one in questions)
    short = {name for name in names if len(tokenizer.encode(data.documents[name].text)) <= max_tokens}
    return [one for one in questions if one.document in short]
