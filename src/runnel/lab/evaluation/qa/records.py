"""Records of question answering over long documents: a set with its documents and its questions with true answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from runnel.errors import InputError
from runnel.records import by_id, expect_choice, utf8
from runnel.text.dialogue import AnswerType

Category = Literal["educational", "creative", "official", "conversational"]
"""The kinds of documents of paper E, table 7."""


@dataclass(frozen=True, slots=True)
class QaDocument:
    """A document.

    Attributes:
        id: unique in its set.
        text: the whole document, never cut.
        sentences: [start, end) character spans that tile the text, if the data has them; (): the data has none.

    Raises:
        InputError: the text is blank or has half of a surrogate pair.
    """

    id: str
    text: str
    sentences: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _expect_characters(self.text, f"document {self.id!r}")


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

    def __post_init__(self) -> None:
        what = f"question {self.id!r}"
        _expect_characters(self.question, what)
        for text in (*(self.answers or ("",)), *self.choices):
            _expect_characters(text, f"an answer of {what}")
        expect_choice(self.answer_type, get_args(AnswerType), f"the answer type of {what}")
        if self.category is not None:
            expect_choice(self.category, get_args(Category), f"the category of {what}")


@dataclass(frozen=True, eq=False)
class QaSet:
    """A set of questions with their documents. A document of several questions is stored once.

    Attributes:
        name: paper E's name of the set, or the name of a user's file.
        documents: document id -> document, of all questions; in memory, so sets are read one after another.
        questions: in the order of the data; one at least, each with an id of its own.
        multiple_choice: all questions are multiple-choice: judged as such, and without token F1.
        suite: the benchmark that the set is from; "": none.
        license: of the data; "": unknown.
        notes: what differs from the set in the paper, for the user to know.
    """

    name: str
    documents: Mapping[str, QaDocument]
    questions: tuple[QaQuestion, ...]
    multiple_choice: bool = False
    suite: str = ""
    license: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_id(self.questions, f"the questions of {self.name}")


def _expect_characters(text: str, what: str) -> None:
    """Raise InputError unless a text has a visible character and can be encoded."""
    if not text.strip():
        raise InputError(f"{what} is empty; expected a text")
    utf8(text, what)
