"""Evidence labels by a language model: the sentences of a document from which the true answer of a question follows.

The model knows the question and the true answers. It reads the document in windows of 200 sentences that start 100 sentences
apart and chooses in each the sentences that matter; it then chooses among all of these; at last it is asked if the answer follows
from what it chose. Questions whose answer does not are left out.

Source: paper E, appendix E.3. Differs: the wording is our own, and the replies with sentences are JSON objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from runnel.evaluation.qa import prompts
from runnel.evaluation.qa.context import Span, join, windows
from runnel.evaluation.qa.inquiry import Inquiry
from runnel.evaluation.qa.records import QaDocument, QaQuestion, QaSet
from runnel.generation.endpoint import Reply
from runnel.generation.replies import Replies
from runnel.generation.synthesis.prompts import Rejected, number_sentences, read_reply
from runnel.records import trim
from runnel.text.dialogue import Message
from runnel.text.sentences import split_sentences

WINDOW, STRIDE = 200, 100  # sentences
_REPLY_TOKENS = 2000


@dataclass(frozen=True, slots=True)
class Labels:
    """The evidence of a question.

    Attributes:
        spans: of the chosen sentences, without white space around them; (): there are none.
        sentences: of the document.
        rejected: why the question has no evidence; "": it has.
    """

    spans: tuple[Span, ...]
    sentences: int
    rejected: str = ""


def label(inquiry: Inquiry, data: QaSet, questions: Sequence[QaQuestion]) -> Iterator[tuple[QaQuestion, Labels | None]]:
    """Yield each question with its labels; None: a reply is missing, and repeating the work asks for it."""

    def work(question: QaQuestion, notes: list[str]) -> Labels:
        found = _label(inquiry.replies, question, data.documents[question.document])
        if found.rejected:
            notes.append(f"questions rejected: {found.rejected}")
        return found

    return inquiry.run(work, questions)


def _label(replies: Replies, question: QaQuestion, document: QaDocument) -> Labels:
    spans = _visible(document)
    texts = [document.text[start:end] for start, end in spans]

    def choose(numbers: Sequence[int]) -> list[int]:
        """Let the model choose among sentences with these numbers."""
        shown = number_sentences((number, texts[number]) for number in numbers)
        reply = _ask(replies, prompts.ask_evidence(question.question, question.answers, shown))
        chosen = sorted(set(read_reply(reply, sentences="numbers")["sentences"]))
        if set(chosen) - set(numbers):
            raise Rejected("replies that choose a sentence that was not shown")
        return chosen

    try:
        found: set[int] = set()
        for first, last in windows(np.arange(len(spans) + 1), WINDOW, STRIDE):
            found.update(choose(range(first, last)))
        if not found:
            raise Rejected("no sentence was chosen in any window")
        final = [spans[number] for number in choose(sorted(found))]
        if not final:
            raise Rejected("no sentence was chosen at last")
        check = _ask(replies, prompts.ask_sufficient(question.question, question.answers, join(document.text, final)))
        verdict = prompts.read_verdict(check)
        if verdict is not True:
            raise Rejected("the answer does not follow" if verdict is False else "a decision that cannot be read")
    except Rejected as rejected:
        return Labels((), len(spans), str(rejected))
    return Labels(tuple(final), len(spans))


def _visible(document: QaDocument) -> list[Span]:
    """Return the sentences of a document without white space around them, and without those that have nothing else."""
    spans = (trim(document.text, a, b) for a, b in document.sentences or split_sentences(document.text).tolist())
    return [(start, end) for start, end in spans if start < end]


def _ask(replies: Replies, messages: list[Message]) -> Reply:
    return replies.ask(messages, max_tokens=_REPLY_TOKENS, version=prompts.LABELS)
