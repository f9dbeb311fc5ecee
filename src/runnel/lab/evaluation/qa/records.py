"""Records of question answering over long documents: a set with its documents and its questions with true answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from runnel.errors import InputError
from runnel.records import by_id, expect_choice, utf8
from runnel.text.dialogue import AnswerType

Category = Literal["educational", "creative", "official", "conversational"]
"""The kinds of documents of paper E, table 7."""


@dataclass(frozen=True, slots=True)
class QaDocument:
    """A document."""

    id: str  # unique in its set
    text: str  # never cut
    sentences: tuple[tuple[int, int], ...] = ()  # [start, end) character spans that tile the text, if the data has them


@dataclass(frozen=True, slots=True)
class QaQuestion:
    """A question about one document, which it names by id."""

    id: str  # unique in its set
    document: str
    question: str  # as a generator is to read it; with the choices in it if the question is multiple-choice
    answers: tuple[str, ...]  # each is sufficient; of a multiple-choice question: the right choice as it is in `question`
    choices: tuple[str, ...] = ()  # as in `question`; (): free-form, or the data has the options only within the question
    answer_type: AnswerType = "sentence"  # how long an answer is asked for
    category: Category | None = None  # of its document; None: the data does not say


@dataclass(frozen=True, eq=False)
class QaSet:
    """A set of questions with their documents, in memory. A document of several questions is stored once."""

    name: str  # paper E's, or that of a user's file
    documents: Mapping[str, QaDocument]  # by id, of all questions
    questions: tuple[QaQuestion, ...]  # in the order of the data; one at least, each with an id of its own
    multiple_choice: bool = False  # all questions are: judged as such, and without token F1
    suite: str = ""  # the benchmark that the set is from; "": none
    license: str = ""  # of the data; "": unknown
    notes: tuple[str, ...] = ()  # what differs from the set in the paper, for the user to know

    def __post_init__(self) -> None:
        by_id(self.questions, f"the questions of {self.name}")


def expect_fields(
    where: str, document: str, question: str, answers: Sequence[str], answer_type: object = "sentence", category: object = None
) -> None:
    """Raise InputError unless a document, a question with answers, and its kinds can be used."""
    for what, text in (("document", document), ("question", question), *(("answer", one) for one in answers or [""])):
        if not text.strip():
            raise InputError(f"{where}: the {what} is empty; expected a text")
        utf8(text, f"{where}: the {what}")
    expect_choice(answer_type, get_args(AnswerType), f"{where}: the answer type")
    if category is not None:
        expect_choice(category, get_args(Category), f"{where}: the category")
