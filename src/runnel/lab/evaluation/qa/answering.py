"""Let a language model answer the questions of a set from what was retrieved, and another one judge the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from runnel.generation.endpoint import LanguageModelClient, Reply
from runnel.lab.evaluation.qa.judging import ANSWERS, COPIES, has_mark, judge, read_answer
from runnel.lab.evaluation.qa.records import QaSet
from runnel.lab.evaluation.qa.retrieving import Material, join, locate
from runnel.lab.evaluation.qa.scores import Outcome, best_f1
from runnel.lab.replies import Inquiry
from runnel.text.dialogue import Message, ask_answer, ask_combined, ask_copies

COPIED = 2000  # tokens that may be copied, about as many as 50 sentences have, as in paper E


@dataclass(frozen=True)
class Exam:
    """Questions that are answered, by the language model that `inquiry` asks, and judged."""

    inquiry: Inquiry
    judge: LanguageModelClient
    answer_tokens: int = 2000  # the most of a reply with an answer

    def outcomes(self, data: QaSet, found: Iterable[Material]) -> Iterator[Outcome]:
        """Yield the outcome of each question, in order."""
        for one, outcome in self.inquiry.run(partial(self._outcome, data), found):
            yield outcome or Outcome(one.question.id, one.question.category, one.tokens)

    def _outcome(self, data: QaSet, found: Material, notes: list[str]) -> Outcome:
        question, document = found.question, data.documents[found.question.document].text
        multiple_choice = data.multiple_choice or bool(question.choices)
        outcome, texts = Outcome(question.id, question.category, found.tokens), [join(document, part) for part in found.parts]
        if found.way == "copied":
            lines = self._copies(question.question, texts, notes)
            outcome, texts = replace(outcome, evidence=locate(document, lines)), ["\n".join(lines)]
        answer = self._answer(texts, found, notes)
        if answer is None:
            return outcome.wrong(multiple_choice)
        replies, truths = self.inquiry.replies, question.answers
        verdicts = judge(replies, self.judge, question.question, truths, answer, multiple_choice=multiple_choice, notes=notes)
        return outcome.judged(answer, verdicts, None if multiple_choice else best_f1(answer, truths))

    def _answer(self, texts: list[str], found: Material, notes: list[str]) -> str | None:
        question, kind = found.question, found.question.answer_type
        excerpts = found.way != "whole"
        replies = [self._ask(ask_answer(question.question, text, kind, excerpts=excerpts)) for text in texts]
        if len(replies) > 1:
            replies = [self._ask(ask_combined(question.question, [reply.text for reply in replies], kind))]
        (reply,) = replies
        answer = read_answer(reply)
        if answer is None:
            notes.append("replies without an answer, which count as wrong")
        elif reply.finish == "length":
            notes.append("answers cut at their limit of tokens")
        elif not has_mark(reply):
            notes.append("replies without ANSWER:, which are judged whole")
        return answer

    def _copies(self, question: str, windows: list[str], notes: list[str]) -> list[str]:
        """Return the lines that a language model copies from the windows of a document, each once, of `COPIED` tokens in all."""
        lines: dict[str, None] = {}
        for window in windows:
            messages, most = ask_copies(question, window), max(1, COPIED // len(windows))
            reply = self.inquiry.replies.ask(messages, max_tokens=most, version=COPIES)
            if reply.finish == "length":
                notes.append("copies cut at their limit of tokens")
            lines |= dict.fromkeys(line.strip() for line in reply.text.split("\n") if line.strip())
        return list(lines)

    def _ask(self, messages: list[Message]) -> Reply:
        return self.inquiry.replies.ask(messages, max_tokens=self.answer_tokens, version=ANSWERS)
