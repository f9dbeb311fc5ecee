"""The test file that the authors of paper E released: their own 5,735 questions, documents and sentences.

mambaretriever_test.json is one object, SET -> ID -> point. A point has "question", "answer" (all true answers), "answer_type"
("sentence" or "paragraph"), "full_text_sentences", the document's units, and "input_ids" and "sentence_indices", the document in
tokens of GPT-NeoX, which are not read: `QaDocument.sentences` are the same units in characters.
mambaretriever_test_per_category.json has the points by category; categories are read from it if it is in the same folder.

The data is under CC-BY-NC: not for commercial use.

Source: https://github.com/MambaRetriever/MambaRetriever (README.md, "Evaluation Data Structure", "License").
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, cast, get_args

from runnel.errors import InputError
from runnel.evaluation.qa.building import SetBuilder
from runnel.evaluation.qa.json_values import read_values
from runnel.evaluation.qa.records import Category, QaSet
from runnel.evaluation.qa.sets import SETS, SetFacts
from runnel.text.dialogue import AnswerType
from runnel.text.lines import find, text_of, texts_of
from runnel.training.released import LICENSE

TEST, BY_CATEGORY = "mambaretriever_test.json", "mambaretriever_test_per_category.json"
log = logging.getLogger("runnel")


def read(path: Path, only: Collection[str] = ()) -> Iterator[QaSet]:
    """Yield the sets of the file in its order, each read when it is asked for.

    Args:
        path: mambaretriever_test.json; plain, .gz or .zst.
        only: names of the sets to return; (): all.

    Raises:
        InputError, ReadError: a point has another form, or the file is that of categories; the message has the place.
    """
    log.warning("%s: released under %s, not for commercial use", path, LICENSE)
    by_category = find(path.parent, BY_CATEGORY)
    categories = _categories(by_category) if by_category else {}
    for name, points in groupby(read_values(path, 2), key=lambda one: one[0][0]):
        if name.lower() in get_args(Category):
            raise InputError(f"{path} has the questions by category; give {TEST}, which names their sets")
        if only and name not in only:
            continue
        builder = SetBuilder(SETS.get(name, SetFacts(name)), LICENSE)
        unknown = 0
        for (_, key), point in points:
            category = categories.get(key)
            unknown += bool(categories) and category is None
            _add(builder, f"{path}, {name}, {key!r}", key, point, category)
        if unknown:
            builder.note(f"{unknown:,} questions are not in {BY_CATEGORY}")
        yield builder.build()


def _categories(path: Path) -> Mapping[str, Category]:
    """Return question id -> category."""
    found: dict[str, Category] = {}
    for (name, key), _ in read_values(path, 2):
        if name.lower() not in get_args(Category):
            raise InputError(f"{path}: unknown category {name!r}; expected {', '.join(get_args(Category))}")
        found[key] = cast("Category", name.lower())
    return found


def _add(builder: SetBuilder, where: str, key: str, point: Any, category: Category | None) -> None:
    if not isinstance(point, dict):
        raise InputError(f"{where}: expected an object in braces, got {type(point).__name__}")
    units = texts_of(point, "full_text_sentences", where)
    ends = list(accumulate((len(unit) for unit in units), initial=0))
    builder.add(
        where,
        "".join(units),
        text_of(point, "question", where),
        texts_of(point, "answer", where),
        id=key,
        sentences=tuple(pairwise(ends)),
        answer_type=cast("AnswerType", text_of(point, "answer_type", where)),
        category=category,
    )
