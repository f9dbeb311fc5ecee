"""Places of texts that are no files."""

from typing import Any

from runnel.records import AnsweringSentence, Place


def place(file: str, text: str, start: int = 0, end: int | None = None, **others: Any) -> Place:
    end = len(text) if end is None else end
    fields = {
        "id": None,
        "line": 1,
        "page": None,
        "headings": (),
        "kind": "txt",
        "sha256": "",
    } | others
    return Place(file, start=start, end=end, text=text[start:end], **fields)


def answering(where: Place, score: float = 0.0, index: int = 0, **others: Any) -> AnsweringSentence:
    return AnsweringSentence(**vars(where), score=score, index=index, **others)
