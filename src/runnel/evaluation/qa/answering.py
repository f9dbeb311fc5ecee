"""Let a language model answer the questions of a set from what was retrieved, and another one judge the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from runnel.errors import EndpointError, InputError
from runnel.evaluation.qa import prompts
from runnel.evaluation.qa.context import join
from runnel.evaluation.qa.records import QaQuestion, QaSet
from runnel.evaluation.qa.retrieving import Found
from runnel.evaluation.qa.scores import Outcome, best_f1
from runnel.generation.endpoint import Endpoint, Message, Reply
from runnel.generation.replies import Replies, Stopped

_WAVE = 64  # questions whose answers are kept in memory at a time


@dataclass(frozen=True)
class Limits:
    """The most tokens of replies, and requests at a time.

    Raises:
        InputError: a number is below 1.
    """

    answer_tokens: int = 2000
    judge_tokens: int = 1000
    threads: int = 8

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "judge_tokens", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")


@dataclass
class Exam:
    """Questions that are answered and judged. All replies are stored, so a repeated exam asks only what was not answered.

    Args:
        replies: the language model that answers, with its stored replies.
        judge: the language model that judges.

    Attributes:
        notes: what was unusual about replies, with its number.
        stopped: why the exam ended early, if it did.
        failure: the last error of an endpoint, if any.
    """

    replies: Replies
    judge: Endpoint
    limits: Limits
    notes: Counter[str] = field(default_factory=Counter)
    stopped: Stopped | None = None
    failure: EndpointError | None = None

    def outcomes(self, data: QaSet, found: Iterator[Found]) -> Iterator[Outcome]:
        """Yield the outcome of each question, in order; after `stopped` has a reason, only stored replies are used."""
        with ThreadPoolExecutor(self.limits.threads) as pool:
            while wave := list(islice(found, _WAVE)):
                for outcome, notes in pool.map(lambda one: self._outcome(data, one), wave):
                    self.notes.update(notes)
                    yield outcome

    def _outcome(self, data: QaSet, found: Found) -> tuple[Outcome, list[str]]:
        """Answer and judge one question; without a reply of an endpoint the question stays open."""
        question, notes = found.question, list[str]()
        multiple_choice = data.multiple_choice or bool(question.choices)
        outcome = Outcome(question.id, question.category, found.tokens)
        try:
            answer = self._answer(data.documents[question.document].text, found, notes)
            if answer is None:
                return outcome.wrong(multiple_choice), notes
            verdicts = [
                self._verdict(question, truth, answer, multiple_choice, notes) for truth in dict.fromkeys(question.answers)
            ]
        except Stopped as stopped:
            self.stopped = self.stopped or stopped
        except EndpointError as error:
            self.failure = error
        else:
            f1 = None if multiple_choice else best_f1(answer, question.answers)
            return outcome.judged(answer, verdicts, f1), notes
        return outcome, notes

    def _answer(self, document: str, found: Found, notes: list[str]) -> str | None:
        question, kind = found.question, found.question.answer_type
        replies = [
            self._ask(prompts.ask_answer(question.question, join(document, part), kind, excerpts=found.excerpts))
            for part in found.parts
        ]
        if len(replies) > 1:
            replies = [self._ask(prompts.ask_combined(question.question, [reply.text for reply in replies], kind))]
        (reply,) = replies
        answer = prompts.read_answer(reply)
        if answer is None:
            notes.append("replies without an answer, which count as wrong")
        elif reply.finish == "length":
            notes.append("answers cut at their limit of tokens")
        elif not prompts.has_mark(reply):
            notes.append("replies without ANSWER:, which are judged whole")
        return answer

    def _verdict(self, question: QaQuestion, truth: str, answer: str, multiple_choice: bool, notes: list[str]) -> bool | None:
        messages = prompts.ask_judgment(question.question, truth, answer, multiple_choice=multiple_choice)
        return judge(self.replies, self.judge, messages, self.limits.judge_tokens, notes)

    def _ask(self, messages: list[Message]) -> Reply:
        return self.replies.ask(messages, max_tokens=self.limits.answer_tokens, version=prompts.ANSWERS)


def judge(replies: Replies, endpoint: Endpoint, messages: list[Message], max_tokens: int, notes: list[str]) -> bool | None:
    """Return the verdict of a judge; None, with a note, if it cannot be read.

    Raises:
        EndpointError, Stopped: see `Replies.ask`.
    """
    reply = replies.ask(messages, max_tokens=max_tokens, version=prompts.JUDGMENTS, endpoint=endpoint)
    verdict = prompts.read_verdict(reply)
    if verdict is None:
        notes.append("judgments cut at their limit of tokens" if reply.finish == "length" else "judgments without YES or NO")
    return verdict
