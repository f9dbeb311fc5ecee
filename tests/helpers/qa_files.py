"""Made-up files of question answering in the layouts of the suites, a few rows each."""

from pathlib import Path

from helpers.files import read_rows, write_rows

from runnel.lab.evaluation.qa.loading import QaSet, read_qa_sets

__all__ = ["ATTIC", "CELLAR", "read_one", "read_rows", "shown", "write_rows"]
ATTIC = "The letters are in the attic. Ada found them in 1912."
CELLAR = "The wine is in the cellar. Nobody has counted it."


def read_one(path: Path) -> QaSet:
    (one,) = read_qa_sets(path)
    return one


def shown(one: QaSet) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return (id, document, question, answers) of a set's questions."""
    return [(q.id, one.documents[q.document].text, q.question, q.answers) for q in one.questions]
