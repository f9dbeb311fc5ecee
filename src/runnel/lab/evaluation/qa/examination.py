"""Examine a model on question answering sets: `examine` is what `runnel lab qa` does.

In order: `plan_reading` decides what is read for a question, `find_material` finds it, `Exam` has
language models answer from it and judge the answers, and `_save_all` writes the scores. The model
that is examined is a retriever, or one of two ways without one: "whole", in which the language
model reads all of the document, and "copied", in which it first copies sentences from it.

For each set OUT has SET.found.jsonl (what is read; with a limit the name says which questions were
drawn), SET.answers.jsonl, the scores in SET.json and
SET.queries.jsonl, and for the model "copied" SET.evidence.jsonl, a task for `runnel lab evaluate`.
For all sets together it has qa.json, and replies.sqlite, the replies of the language models, so
that none is paid for twice.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from runnel.batching import top
from runnel.errors import counted
from runnel.files import digest, write_json, write_jsonl
from runnel.generation.endpoint import LanguageModelClient, Reply
from runnel.jobs.progress import notify, notify_when, open_progress
from runnel.jobs.runs import WorkPlan, resumed_rows
from runnel.lab.evaluation.evidence import Scorer, scorer_of
from runnel.lab.evaluation.metrics import VERSION, expect_new, save
from runnel.lab.evaluation.qa import judging
from runnel.lab.evaluation.qa.loading import QaDocument, QaQuestion, QaSet, read_qa_sets
from runnel.lab.evaluation.retrieval import (
    EMBEDDERS,
    How,
    Options,
    System,
    cut_sentences,
    expect_stride,
)
from runnel.lab.evaluation.run import system_for
from runnel.lab.prompts import read_prompts
from runnel.lab.replies import Inquiry, costs, stored_replies
from runnel.models.folder import BUILT_IN
from runnel.text.dialogue import GAP, Message, ask_answer, ask_combined, ask_copies
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import read_tokenizer

# characters [start, end) of a document
Span = tuple[int, int]
# Spans of a document. Each part is read by itself; answers from several parts are combined.
DocumentParts = list[list[Span]]
# returns what to read for a question about a document
ChooseParts = Callable[[str, QaDocument], DocumentParts]
# How parts are used: excerpts that were retrieved are read; so are windows of the whole document;
# or a language model first copies the sentences that matter from each window, and reads these.
Way = Literal["excerpts", "whole", "copied"]


class Material(NamedTuple):
    """The texts that a language model reads for a question."""

    question: QaQuestion
    tokens: int  # of its document
    parts: DocumentParts


def by_retrieval(score: Scorer, top_k: int) -> ChooseParts:
    """Return a function that chooses the `top_k` best sentences or chunks of a document."""

    def choose(question: str, document: QaDocument) -> DocumentParts:
        spans, scores = score(question, document.text, document.sentences)
        best = spans[top(scores, top_k)].tolist()
        return [merge(document.text, ((start, end) for start, end in best))]

    return choose


def by_windows(tokenizer: Tokenizer, size: int, stride: int) -> ChooseParts:
    """Return a function that takes the whole document, in windows of whole sentences of at most
    `size` tokens.
    """

    @lru_cache(maxsize=1)
    def cut(document: str) -> DocumentParts:
        starts = tokenizer.encode(document).starts
        return [[span] for span in cut_sentences(document, starts, size, stride)]

    return lambda question, document: cut(document.text)


def merge(document: str, spans: Iterable[Span]) -> list[Span]:
    """Return spans in document order. Spans that overlap, or have only white space between them,
    are joined.
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and (start <= merged[-1][1] or not document[merged[-1][1] : start].strip()):
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def join(document: str, spans: Iterable[Span]) -> str:
    """Return the text of spans in document order, with `GAP` in a line of its own where text is
    left out between them.

    Source: paper E, section 3 (docs/papers.md), and its authors' code, which does not mark gaps.
    """
    texts = (document[start:end].strip() for start, end in merge(document, spans))
    return f"\n{GAP}\n".join(text for text in texts if text)


def locate(document: str, lines: Iterable[str]) -> tuple[Span, ...]:
    """Return the spans where copied lines first occur, in document order. Lines that are not in the
    document are left out.
    """
    matches = (re.search(r"\s+".join(map(re.escape, line.split())), document) for line in lines)
    return tuple(sorted({match.span() for match in matches if match}))


@dataclass(frozen=True)
class ReadingPlan:
    """How the material for a question is found, and how it is used."""

    way: Way
    # everything that the material depends on, except the questions and the weights of the model
    settings: Mapping[str, object]
    window: tuple[int, int] | None  # tokens of a window and stride; None: documents are read whole
    system: System | None = None  # retrieves excerpts; None: windows are read
    top_k: int = 0  # the number of excerpts

    def load(self, tokenizer: Tokenizer) -> tuple[ChooseParts, str | None]:
        """Return the function that chooses the parts to read, and the fingerprint of its model."""
        if self.system is None:
            assert self.window is not None
            return by_windows(tokenizer, *self.window), None
        score, fingerprint = scorer_of(self.system, self.window)
        return by_retrieval(score, self.top_k), fingerprint


# sentences to read, and tokens of a window, as in paper E (docs/papers.md)
SENTENCES = 50
CHUNKS = 5
WINDOW = 120_000


def plan_reading(model: str, *, how: How | None = None, **options: Any) -> ReadingPlan:
    """Return the plan for options of `runnel lab qa`. Raises InputError for an option without
    effect on what the model reads.
    """
    # 1. what the model does: a retriever's `How`, "whole" or "copied"
    kind: Any = how or "sentences"
    if model in ("whole", "copied", "bm25"):
        kind = model
    elif model.startswith(EMBEDDERS):
        kind = "embed"
    # 2. the options that have an effect on it
    # `how` has no effect, and is refused, if the model's name alone says what it does
    given = Options({"how": None if how == kind else how, **options})
    settings: dict[str, object] = {"model": model, "as": kind}
    if kind in ("whole", "copied"):
        window = _window(given)
        settings |= {"window_tokens": window[0], "stride": window[1]}
        plan = ReadingPlan(kind, settings, window)
    else:
        system = system_for(model, "evidence", kind, given)
        usual = SENTENCES if system.chunk_words is None else CHUNKS
        top_k = given.take("top_k").get("top_k", usual)
        # Only a recurrent model has windows; without them it reads documents whole. Pieces
        # (`context`) are always read one by one.
        may_have_windows = kind == "sentences" and system.context is None
        read = _window(given) if may_have_windows and "window_tokens" in given.given else None
        settings |= {
            "context": system.context,
            "chunk_words": system.chunk_words,
            "top_k": top_k,
            "window": read and list(read),
        }
        plan = ReadingPlan("excerpts", settings, read, system, top_k)
    given.refuse_others(f"{model} as {kind}")
    return plan


def _window(given: Options) -> tuple[int, int]:
    size = given.take("window_tokens").get("window_tokens", WINDOW)
    stride = given.take("stride").get("stride", max(1, size // 2))
    expect_stride(stride, size)
    return size, stride


def draw(data: QaSet, limit: int | None, seed: int) -> QaSet:
    """Return a set with `limit` of its questions, drawn at random, in their order, and with a note
    that says so; None: all questions.

    Source: paper E draws 200 questions from larger sets (docs/papers.md, E, table 8). A smaller
    `limit` draws some of the questions that a larger one draws.
    """
    count = len(data.questions)
    if limit is None or limit >= count:
        return data
    chosen = sorted(np.random.default_rng(seed).permutation(count)[:limit].tolist())
    return replace(
        data,
        questions=tuple(data.questions[i] for i in chosen),
        notes=(
            *data.notes,
            f"{limit:,} of its {count:,} questions, drawn at random with seed {seed}",
        ),
    )


def find_material(data: QaSet, plan: ReadingPlan, out: Path) -> list[Material]:
    """Return the material for each question. It is written to OUT; what OUT already has is not made
    again.
    """
    # One tokenizer, of the built-in model pocket, counts tokens for every system, so that lengths
    # are comparable.
    tokenizer = read_tokenizer(BUILT_IN["pocket"])

    @lru_cache(maxsize=1)  # several questions in a row are about a document
    def count(document: str) -> int:
        return len(tokenizer.encode(document))

    def load() -> WorkPlan[QaQuestion]:
        choose, fingerprint = plan.load(tokenizer)

        def row_of(question: QaQuestion) -> dict[str, object]:
            document = data.documents[question.document]
            return {
                "id": question.id,
                "tokens": count(document.text),
                "parts": choose(question.question, document),
            }

        return WorkPlan(data.questions, row_of, fingerprint)

    questions = ([item.id, item.document, item.question] for item in data.questions)
    documents = ([item.id, item.text, item.sentences] for item in data.documents.values())
    settings = {**plan.settings, "questions": digest(*map(json.dumps, (*questions, *documents)))}
    return [
        Material(question, row["tokens"], row["parts"])
        for question, row in zip(data.questions, resumed_rows(out, settings, load), strict=True)
    ]


# The most tokens that may be copied: about as many as 50 sentences have (docs/papers.md, E).
COPIED = 2000


@dataclass(frozen=True)
class Exam:
    """Questions that are answered, by the language model that `inquiry` asks, and judged."""

    inquiry: Inquiry
    judge: LanguageModelClient
    way: Way = "excerpts"
    answer_tokens: int = 2000  # the most tokens of a reply with an answer
    # the judge's prompts
    prompts: Mapping[str, str] = field(default_factory=lambda: judging.PROMPTS)

    def outcomes(self, data: QaSet, materials: Iterable[Material]) -> Iterator[judging.Outcome]:
        """Yield the outcome of each question; one without an answer if a reply is missing."""
        for (question, tokens, _), outcome in self.inquiry.run(
            partial(self._outcome, data), materials
        ):
            yield outcome or judging.Outcome(question.id, question.category, tokens)

    def _outcome(self, data: QaSet, material: Material, notes: list[str]) -> judging.Outcome:
        question, tokens, parts = material
        document = data.documents[question.document].text
        multiple_choice = data.multiple_choice or bool(question.choices)
        outcome = judging.Outcome(question.id, question.category, tokens)
        texts = [join(document, part) for part in parts]
        if self.way == "copied":
            lines = self._copies(question.question, texts, notes)
            outcome = replace(outcome, evidence=locate(document, lines))
            texts = ["\n".join(lines)]
        answer = self._answer(texts, question, notes)
        if answer is None:
            return replace(
                outcome, answered=True, correct=False, f1=None if multiple_choice else 0.0
            )
        verdicts: list[bool | None] = []
        for truth in question.answers:
            asked = judging.ask_judgment(
                question.question,
                truth,
                answer,
                multiple_choice=multiple_choice,
                prompts=self.prompts,
            )
            reply = self._ask(asked, judging.JUDGE_TOKENS, judging.JUDGMENTS, self.judge)
            verdicts.append(judging.read_verdict(reply))
            if verdicts[-1] is None and reply.finish == "length":
                notes.append("judgments cut at their limit of tokens")
            elif verdicts[-1] is None:
                notes.append("judgments without YES or NO")
        f1 = None
        if not multiple_choice:
            f1 = max(judging.token_f1(answer, truth) for truth in question.answers)
        correct: bool | None = True in verdicts
        if not correct and None in verdicts:
            correct = None
        return replace(
            outcome, answered=True, answer=answer, verdicts=tuple(verdicts), correct=correct, f1=f1
        )

    def _answer(self, texts: list[str], question: QaQuestion, notes: list[str]) -> str | None:
        kind = question.answer_type
        prompts = [
            ask_answer(question.question, text, kind, excerpts=self.way != "whole")
            for text in texts
        ]
        replies = [self._ask(prompt, self.answer_tokens, judging.ANSWERS) for prompt in prompts]
        if len(replies) > 1:
            prompt = ask_combined(question.question, [reply.text for reply in replies], kind)
            replies = [self._ask(prompt, self.answer_tokens, judging.ANSWERS)]
        (reply,) = replies
        answer = judging.read_answer(reply)
        if answer is None:
            notes.append("replies without an answer, which count as wrong")
        elif reply.finish == "length":
            notes.append("answers cut at their limit of tokens")
        elif not judging.has_mark(reply):
            notes.append("replies without ANSWER:, which are judged whole")
        return answer

    def _copies(self, question: str, windows: list[str], notes: list[str]) -> list[str]:
        """Return the lines that a language model copies from the windows of a document, each once,
        of `COPIED` tokens in all.
        """
        lines: dict[str, None] = {}
        for window in windows:
            reply = self._ask(
                ask_copies(question, window), max(1, COPIED // len(windows)), judging.COPIES
            )
            if reply.finish == "length":
                notes.append("copies cut at their limit of tokens")
            lines |= dict.fromkeys(line.strip() for line in reply.text.split("\n") if line.strip())
        return list(lines)

    def _ask(
        self,
        messages: list[Message],
        most: int,
        version: str,
        endpoint: LanguageModelClient | None = None,
    ) -> Reply:
        """Return a reply of at most `most` tokens; `version` as of `Replies.ask`."""
        return self.inquiry.replies.ask(
            messages, max_tokens=most, version=version, endpoint=endpoint
        )


# what is known of a set, and the outcomes of its questions
_SetResult = tuple[Mapping[str, object], Sequence[judging.Outcome]]


def examine(
    model: str,
    paths: Sequence[str],
    out: str | Path,
    endpoint: LanguageModelClient,
    judge: LanguageModelClient | None = None,
    *,
    only: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    labels: Path | None = None,
    prompts: Path | None = None,
    answer_tokens: int = 2000,
    threads: int = 8,
    **reading: Any,
) -> dict[str, Any]:
    """Let a language model answer the questions of sets from the texts that a model retrieves;
    return the report, which is also in `out`.

    The arguments are those of `runnel lab qa`: `endpoint` is the language model that answers, and
    `judge` the one that judges (None: the same); `labels` are rows of SET.answers.jsonl with a
    person's "right", `prompts` a file of the judge's (docs/data.md); `reading` are arguments of
    `plan_reading`. Raises InputError if an option, the prompts or a set cannot be used.
    """
    # 1. what is read for a question, and the labels of people
    plan = plan_reading(model, **reading)
    if seed and limit is None:
        Options({"seed": seed}).refuse_others("all questions: --limit draws some")
    texts = judging.PROMPTS
    if prompts is not None:
        texts = read_prompts(prompts, "judging", texts, texts)
    labeled = {} if labels is None else judging.read_labels(labels)
    judge = judge or endpoint
    with stored_replies(Path(out), endpoint, judge) as replies:
        # 2. answers of each set, judged
        exam = Exam(Inquiry(replies, threads), judge, plan.way, answer_tokens, texts)
        sets = (draw(data, limit, seed) for path in paths for data in read_qa_sets(path, only))
        part = "" if limit is None else f".{limit}-seed-{seed}"
        results = _examine(exam, sets, plan, Path(out), part)
        # 3. scores
        report = _save_all(results, exam, plan.settings, Path(out), labeled)
    _note_all(report, exam.inquiry)
    return report


def _examine(
    exam: Exam, sets: Iterable[QaSet], plan: ReadingPlan, out: Path, part: str
) -> dict[str, _SetResult]:
    """Return the outcomes of the questions by set, or by a part of a set that has a name of its
    own; they are also written to OUT.
    """
    results: dict[str, _SetResult] = {}
    for data in sets:
        expect_new(data.name, results)
        material = find_material(data, plan, out / f"{data.name}{part}.found.jsonl")
        with open_progress("answering", "questions") as progress:
            outcomes = list(progress.count(exam.outcomes(data, material), len(material)))
        rows = (
            {"set": data.name, "text": q.question, "answers": q.answers, **asdict(outcome)}
            for q, outcome in zip(data.questions, outcomes, strict=True)
        )
        write_jsonl(out / f"{data.name}.answers.jsonl", rows)
        if plan.way == "copied":
            write_jsonl(out / f"{data.name}.evidence.jsonl", _evidence(data, outcomes))
        results[data.name] = (
            {"suite": data.suite, "license": data.license, "notes": list(data.notes)},
            outcomes,
        )
    return results


def _evidence(data: QaSet, outcomes: list[judging.Outcome]) -> Iterator[dict[str, object]]:
    """Yield rows of the questions whose right answer follows from sentences of their document, with
    these sentences.
    """
    for question, outcome in zip(data.questions, outcomes, strict=True):
        if outcome.correct and outcome.evidence:
            yield {
                "id": question.id,
                "question": question.question,
                "document": data.documents[question.document].text,
                "answers": question.answers,
                "evidence": outcome.evidence,
            }


def _save_all(
    results: Mapping[str, _SetResult],
    exam: Exam,
    settings: Mapping[str, object],
    folder: Path,
    labels: Mapping[judging.AnswerKey, bool],
) -> dict[str, Any]:
    """Write the scores of each set, and the report about all of them, which is returned; `labels`
    are people's judgments.
    """
    settings_used = {
        **settings,
        "llm_model": exam.inquiry.replies.endpoint.model,
        "judge": exam.judge.model,
    }
    if exam.prompts != judging.PROMPTS:
        settings_used["judge_prompts"] = digest(*exam.prompts.values())
    sets = []
    for name, (about, outcomes) in results.items():
        result = {"task": name, "kind": "qa", **about, **settings_used}
        values = {outcome.question: outcome.values() for outcome in outcomes}
        sets.append(save(result | judging.summarize(outcomes), values, folder))
    all_scores = judging.summarize(
        [outcome for _, outcomes in results.values() for outcome in outcomes]
    )
    report = {
        "version": VERSION,
        **settings_used,
        "by_category": all_scores.pop("by_category"),
        "by_length": all_scores.pop("by_length"),
        "all": all_scores,
        "mean_of_sets": judging.mean_of_sets([outcomes for _, outcomes in results.values()]),
        "sets": sets,
        "agreement": _agreement(results, labels),
        "notes": dict(exam.inquiry.notes.most_common()),
        "cost": costs(
            exam.inquiry.replies,
            copies=judging.COPIES,
            answers=judging.ANSWERS,
            judgments=judging.JUDGMENTS,
        ),
    }
    write_json(folder / "qa.json", report)
    return report


def _agreement(
    results: Mapping[str, _SetResult], labels: Mapping[judging.AnswerKey, bool]
) -> dict[str, Any] | None:
    """Return how the judge agrees with people's labels; None if no label is of an answer here."""
    judged = {
        (name, outcome.question, outcome.answer): outcome.correct
        for name, (_, outcomes) in results.items()
        for outcome in outcomes
    }
    pairs = [(right, judged[answer]) for answer, right in labels.items() if answer in judged]
    if len(pairs) < len(labels):
        notify(f"note: {len(labels) - len(pairs):,} of {len(labels):,} labels are of other answers")
    return judging.agreement(*zip(*pairs, strict=True)) if pairs else None


def _note_all(report: Mapping[str, Any], inquiry: Inquiry) -> None:
    notes: list[str] = []
    for result in report["sets"]:
        notes += [f"{result['task']}: {note}" for note in result["notes"]]
        if result["license"]:
            notes.append(f"{result['task']}: license {result['license']}")
    unreadable = report["all"]["unreadable"]
    estimated = sum(used["estimated"] for used in report["cost"].values())
    missing = report["all"]["unanswered"]
    notify_when(
        *((True, f"note: {note}") for note in dict.fromkeys(notes)),
        (
            unreadable,
            f"note: {unreadable:,} questions have no verdict that can be read; they are in no share"
            " of right answers",
        ),
        *((count, f"note: {count:,} {note}") for note, count in inquiry.notes.most_common()),
        (
            estimated,
            f"note: the endpoint did not count the tokens of {estimated:,} replies; they are"
            " estimated",
        ),
        (inquiry.failure, f"note: the last failure of an endpoint: {inquiry.failure}"),
        (inquiry.stopped, f"note: stopped: {inquiry.stopped}"),
        (
            missing,
            f"note: without a reply yet, and in no score: {counted(missing, 'question')}; repeat"
            " the command to ask again",
        ),
    )
