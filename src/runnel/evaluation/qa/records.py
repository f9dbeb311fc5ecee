"""Records of question answering over long documents: a set with its documents and its questions with true answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from runnel.errors import InputError
from runnel.records import expect_text
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
        InputError: the text is blank or has half of a surrogate pair, or the spans do not tile it.
    """

    id: str
    text: str
    sentences: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        expect_text(self.id, "the id of a document")
        _expect_characters(self.text, f"the text of document {self.id!r}")
        if not self.text.strip():
            raise InputError(f"document {self.id!r} is empty; expected a text")
        ends = [0, *(end for _, end in self.sentences)]
        if self.sentences and ([start for start, _ in self.sentences] != ends[:-1] or ends[-1] != len(self.text)):
            raise InputError(f"the sentences of document {self.id!r} do not tile its {len(self.text):,} characters")


@dataclass(frozen=True, slots=True)
class QaQuestion:
    """A question about one document.

    Attributes:
        id: unique in its set.
        document: the id of its document.
        question: as a generator is to read it; with the choices in it if the question is multiple-choice.
        answers: the true answers, one at least; each is sufficient. Of a multiple-choice question: the right choice as it is
            written in `question`, such as "B. in the attic".
        choices: the options of a multiple-choice question as written in `question`; (): the question is free-form, or the data
            has its options only within the question.
        answer_type: how long an answer is asked for.
        category: of its document; None: the data does not say.

    Raises:
        InputError: the question or an answer is blank or has half of a surrogate pair, no answer, or an unknown answer type or
            category.
    """

    id: str
    document: str
    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    answer_type: AnswerType = "sentence"
    category: Category | None = None

    def __post_init__(self) -> None:
        what = f"question {self.id!r}"
        for value, name in ((self.id, "the id of a question"), (self.document, f"the document of {what}"), (self.question, what)):
            _expect_characters(value, name)
        if not self.question.strip():
            raise InputError(f"{what} is empty; expected a text")
        if not self.answers:
            raise InputError(f"{what} has no answer; expected one at least")
        for text in (*self.answers, *self.choices):
            _expect_characters(text, f"an answer of {what}")
            if not text.strip():
                raise InputError(f"an answer of {what} is empty; expected a text")
        if self.answer_type not in get_args(AnswerType):
            raise InputError(f"the answer type of {what} is {self.answer_type!r}; expected {' or '.join(get_args(AnswerType))}")
        if self.category not in (None, *get_args(Category)):
            raise InputError(f"the category of {what} is {self.category!r}; expected one of {', '.join(get_args(Category))}")


@dataclass(frozen=True, eq=False)
class QaSet:
    """A set of questions with their documents. A document of several questions is stored once.

    Attributes:
        name: paper E's name of the set, or the name of a user's file.
        documents: document id -> document, of all questions; in memory, so sets are read one after another.
        questions: in the order of the data.
        multiple_choice: all questions are multiple-choice: judged as such, and without token F1.
        suite: the benchmark that the set is from; "": none.
        license: of the data; "": unknown.
        notes: what differs from the set in the paper, for the user to know.

    Raises:
        InputError: no question, two questions with one id, or a question about a document that the set does not have.
    """

    name: str
    documents: Mapping[str, QaDocument]
    questions: tuple[QaQuestion, ...]
    multiple_choice: bool = False
    suite: str = ""
    license: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.questions:
            raise InputError(f"{self.name} has no questions; expected one at least")
        seen: set[str] = set()
        for one in self.questions:
            if one.id in seen:
                raise InputError(f"{self.name} has two questions with the id {one.id!r}; expected each id once")
            if one.document not in self.documents:
                raise InputError(
                    f"question {one.id!r} of {self.name} is about document {one.document!r}, which the set does not have"
                )
            seen.add(one.id)


def _expect_characters(value: object, what: str) -> None:
    """Raise InputError unless `value` is text that can be encoded."""
    expect_text(value, what)
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} has half of a surrogate pair ({error.object[error.start]!r}), which is not text; remove it"
        ) from error
