"""`runnel qa`: questions about long documents, answered by a language model from what was retrieved, and judged by another.

For each set OUT has SET.found.jsonl (what is read), SET.answers.jsonl, the scores in SET.json and SET.queries.jsonl, and of MODEL
"copied" SET.evidence.jsonl for `runnel evaluate`; for all of them qa.json, and replies.sqlite: none is paid for twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runnel.commands.display import Meter, print_json
from runnel.commands.options import Dtype, Json, refuse
from runnel.errors import InputError
from runnel.files import write_jsonl
from runnel.lab.commands.inquiries import AskingOptions, Out, QaPaths, SetNames, open_llm, say_notes
from runnel.lab.commands.qa_reading import Setup, draw, find, read_excerpts, read_windows, system_of, window_of
from runnel.lab.commands.qa_results import SetResult, save_all, say_about_sets, show

if TYPE_CHECKING:
    from runnel.lab.evaluation.qa.answering import Exam
    from runnel.lab.evaluation.qa.records import QaSet
    from runnel.lab.evaluation.qa.scores import Outcome

WINDOWED: tuple[Literal["whole", "copied"], ...] = ("whole", "copied")  # instead of a model; see `retrieving.Way`
SENTENCES, CHUNKS = 50, 5  # to read, as in paper E
WINDOW = 120_000  # tokens, as in paper E


@dataclass(frozen=True)
class ExcerptOptions:
    """What is read for a question."""

    how: Annotated[Literal["sentences", "embed"] | None, typer.Option("--as", help="What MODEL does (default: sentences).")] = (
        None
    )
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", min=1, help="Sentences (50) or chunks (5) to read.")] = None
    chunk_words: Annotated[int | None, typer.Option(min=1, help="Retrieve chunks of this many words, not sentences.")] = None
    context: Annotated[
        str | None, typer.Option(help="Retrieve from pieces of this many tokens, or: sentence (default: whole).")
    ] = None
    context_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens of excerpts (default: no limit).")] = None
    window_tokens: Annotated[int | None, typer.Option(min=1, help="Read documents in windows (whole, copied: 120000).")] = None
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens from one window to the next (default: half).")] = None

    def setup(self, model: str, dtype: str) -> Setup:
        """Return what is read of the documents."""
        excerpts = {"--as": self.how, "--top-k": self.top_k, "--chunk-words": self.chunk_words, "--context": self.context}
        if way := next((way for way in WINDOWED if way == model), None):
            given = {**excerpts, "--context-tokens": self.context_tokens, "--dtype": dtype != "auto"}
            refuse(given, f"is for retrieval by a model; {way} reads whole documents")
            return read_windows(way, window_of(self.window_tokens or WINDOW, self.stride))
        refuse({"--stride": self.window_tokens is None and self.stride}, "goes with --window-tokens")
        window = None if self.window_tokens is None else window_of(self.window_tokens, self.stride)
        system = system_of(model, self.how, dtype, self.chunk_words, self.context)
        top_k = self.top_k or (SENTENCES if self.chunk_words is None else CHUNKS)
        return read_excerpts(system, top_k, self.context_tokens, window)


def qa(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="What retrieves: a model, bm25, copied (--llm); or whole: nothing does.")
    ],
    paths: QaPaths,
    out: Out,
    only: SetNames = None,
    excerpts: ExcerptOptions = ExcerptOptions(),
    limit: Annotated[int | None, typer.Option(min=1, help="Questions of each set, drawn at random (default: all).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws others.")] = 0,
    asking: AskingOptions = AskingOptions(),
    judge: Annotated[str | None, typer.Option(metavar="URL", help="Endpoint of the judge (default: the same).")] = None,
    judge_model: Annotated[str | None, typer.Option(metavar="NAME", help="The judge (default: the same model).")] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Rows of SET.answers.jsonl with a person\'s "right": measure the judge.')
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a reply with an answer.")] = 2000,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> int:
    """Measure how well questions about long documents are answered from what MODEL retrieves.

    A language model answers from the retrieved sentences, and a judge compares each answer with the true ones. Repeat the command
    after an interruption: no reply is paid for twice. Exit code 1: some questions have no reply yet.
    """
    setup = excerpts.setup(model, dtype)
    refuse({"--seed": limit is None and seed}, "goes with --limit")
    from runnel.lab.evaluation.qa.answering import Exam
    from runnel.lab.evaluation.qa.inquiry import Inquiry
    from runnel.lab.evaluation.qa.judging import read_labels
    from runnel.lab.evaluation.qa.loading import read_qa_sets

    labeled = {} if labels is None else read_labels(labels)
    endpoint, own_judge = asking.open(), judge is not None or judge_model is not None
    judging = open_llm(judge or asking.llm, judge_model or asking.llm_model) if own_judge else endpoint
    with asking.replies(out, endpoint, judging) as replies:
        exam = Exam(Inquiry(replies, asking.threads), judging, answer_tokens)
        data = (draw(data, limit, seed) for path in paths for data in read_qa_sets(path, only or ()))
        results = _examine_all(exam, data, setup, out, "" if limit is None else f".{limit}-seed-{seed}")
        report = save_all(results, exam, setup.settings, out, labeled)
    if as_json:
        print_json(report)
    else:
        show(report)
    say_about_sets(report)
    say_notes(exam.inquiry, report["all"]["unanswered"])
    return 1 if report["all"]["unanswered"] else 0


def _examine_all(exam: Exam, sets: Iterable[QaSet], setup: Setup, out: Path, part: str) -> list[SetResult]:
    """Return the outcomes of all sets, or of a part of each that is named."""
    results: dict[str, SetResult] = {}
    for data in sets:
        if data.name in results:
            raise InputError(f"two sets are called {data.name!r}; their results would be in one file: give one of them")
        outcomes = _examine(exam, data, setup, out, part)
        results[data.name] = SetResult(data.name, data.suite, data.license, data.notes, outcomes)
    return list(results.values())


def _examine(exam: Exam, data: QaSet, setup: Setup, out: Path, part: str) -> list[Outcome]:
    """Return the outcome of each question of a set; they are also written to OUT."""
    found = find(data, setup, out / f"{data.name}{part}.found.jsonl")
    with Meter("answering", unit="questions") as meter:
        outcomes = list(meter.count(exam.outcomes(data, found), len(found)))
    rows = (
        {"set": data.name, "text": one.question, "answers": one.answers, **asdict(outcome)}
        for one, outcome in zip(data.questions, outcomes, strict=True)
    )
    write_jsonl(out / f"{data.name}.answers.jsonl", rows)
    if setup.way == "copied":
        write_jsonl(out / f"{data.name}.evidence.jsonl", _evidence(data, outcomes))
    return outcomes


def _evidence(data: QaSet, outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    """Yield rows of the questions whose right answer follows from sentences of their document, with these sentences."""
    for one, outcome in zip(data.questions, outcomes, strict=True):
        if outcome.correct and outcome.evidence:
            row = {"id": one.id, "question": one.question, "document": data.documents[one.document].text}
            yield {**row, "answers": one.answers, "evidence": outcome.evidence}
