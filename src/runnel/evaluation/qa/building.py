"""Build a set from rows: fields are checked, equal documents stored once, and what cannot be used is counted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from runnel.errors import InputError
from runnel.evaluation.qa.records import Category, QaDocument, QaQuestion, QaSet
from runnel.evaluation.qa.sets import SUITES, SetFacts
from runnel.text.dialogue import AnswerType
from runnel.training.data import Dropped

_CHOICE = re.compile(r"^[ \t]*\(?([A-Z])[.):]", re.MULTILINE)


class SetBuilder:
    """Collects the documents and questions of one set.

    Args:
        facts: of the set.
        license: of the data (default: its suite's).
    """

    def __init__(self, facts: SetFacts, license: str | None = None) -> None:
        self.facts = facts
        self._license = license if license is not None else SUITES[facts.suite].license if facts.suite else ""
        self._documents: dict[str, QaDocument] = {}
        self._questions: list[QaQuestion] = []
        self._dropped = Dropped()
        self._notes: list[str] = []

    def add(
        self,
        where: object,
        text: str,
        question: str,
        answers: Iterable[str],
        *,
        id: str,
        choices: tuple[str, ...] = (),
        sentences: tuple[tuple[int, int], ...] = (),
        answer_type: AnswerType = "sentence",
        category: Category | None = None,
    ) -> None:
        """Add a question about a document.

        Args:
            where: the place of its row, for messages.
            text: the document, known by its text from here on.
            answers: equal ones are kept once.
            category: default: the set's, if it has only one.

        Raises:
            InputError: as `QaDocument` and `QaQuestion`, with the place.
        """
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if category is None and len(self.facts.categories) == 1:
            category = self.facts.categories[0]
        try:
            if key not in self._documents:
                self._documents[key] = QaDocument(key, text, sentences)
            one = QaQuestion(id, key, question, tuple(dict.fromkeys(answers)), choices, answer_type, category)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        self._questions.append(one)

    def leave_out(self, reason: str, where: object) -> None:
        """Count a row that cannot be used; the reason: "questions without choices"."""
        self._dropped.add(reason, str(where))

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self._notes.append(text)

    def build(self) -> QaSet:
        """Return the set.

        Raises:
            InputError: as `QaSet`.
        """
        facts, dropped = self.facts, self._dropped
        notes = [f"{reason}: {count:,} left out, the first: {dropped.first[reason]}" for reason, count in dropped.counts.items()]
        if facts.points not in (0, len(self._questions)):
            notes.append(f"{len(self._questions):,} questions; paper E has {facts.points:,}")
        return QaSet(
            facts.name,
            self._documents,
            tuple(self._questions),
            facts.multiple_choice,
            facts.suite,
            self._license,
            (*self._notes, *notes),
        )


# ---- multiple choice ---------------------------------------------------------------------------------------------------


def lettered(choices: Iterable[str]) -> tuple[str, ...]:
    """Put the letters A, B, C, ... before choices: "A. in the attic"."""
    return tuple(f"{chr(ord('A') + i)}. {choice.strip()}" for i, choice in enumerate(choices))


def find_choices(question: str) -> dict[str, str]:
    """Return the choices at the end of a question by letter: lines "A. ..." or "(A) ..." with the letters from A on.

    A choice goes to the beginning of the next one. Empty if the question has none.
    """
    marks = [match for match in _CHOICE.finditer(question)]
    first = next((i for i in reversed(range(len(marks))) if marks[i][1] == "A"), len(marks))
    marks = marks[first:]
    if [mark[1] for mark in marks] != [chr(ord("A") + i) for i in range(len(marks))] or len(marks) < 2:
        return {}
    bounds = [*(mark.start() for mark in marks), len(question)]
    return {mark[1]: question[a:b].strip() for mark, (a, b) in zip(marks, pairwise(bounds), strict=True)}


def chosen(choices: Mapping[str, str], letters: str, where: object) -> str:
    """Return the choices of one or more letters, such as "BD", each on its own line.

    Raises:
        InputError: a letter is not among the choices.
    """
    if not letters or any(letter not in choices for letter in letters):
        raise InputError(f"{where}: the right choice is {letters!r}; expected one or more of {', '.join(choices)}")
    return "\n".join(choices[letter] for letter in letters)
