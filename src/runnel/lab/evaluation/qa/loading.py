"""Find and read sets in downloaded files: the 41 of paper E as their authors publish them, its released file, a user's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, groupby, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from runnel.errors import InputError
from runnel.files import digest
from runnel.lab.evaluation.benchmarks import read_rows
from runnel.lab.evaluation.qa.json_values import expect_object, read_values
from runnel.lab.evaluation.qa.records import Category, QaDocument, QaQuestion, QaSet, expect_fields
from runnel.lab.evaluation.qa.suites import SETS, SUITES, Fields, Row, SetFacts
from runnel.lab.training.data import LICENSE, Dropped
from runnel.records import expect_choice
from runnel.text.lines import ENDINGS, find, read_json, read_lines, text_of, texts_of

TEST, BY_CATEGORY = "mambaretriever_test.json", "mambaretriever_test_per_category.json"
_OPTIONAL = ("answer_type", "category", "sentences")
log = logging.getLogger("runnel")


def read_qa_sets(path: str | Path, only: Collection[str] = ()) -> Iterator[QaSet]:
    """Yield the sets of a folder or file, each read when it is asked for, so that only one needs to be in memory.

    Args:
        path: a folder with files of any of the suites of `SUITES`, at any depth; one such file; the test file that paper E's
            authors released, or its folder; or jsonl with "question", "document" and "answers" (docs/qa.md).
        only: paper E's names of the sets to read; (): all that are found.

    Raises:
        InputError: nothing is found, a name is unknown or its set is missing, a set has files in two places, or a row has
            another form; the message has the place.
        ReadError: a file is missing or damaged.
        MissingDependency: parquet needs pyarrow, zstd zstandard.
    """
    path = Path(path).expanduser()
    test, name = find(path, TEST), _plain_name(path)
    known = next((one for one in SETS.values() if _is_of(path, one)), None)
    sets: dict[str, Callable[[], QaSet]]
    if path.is_dir() and not test:
        sets = {name: partial(_read_set, SETS[name], files, path) for name, files in _find_files(path).items()}
    elif known:
        sets = {known.name: partial(_read_set, known, [path], path.parent)}
    elif test or name.endswith(".json"):
        yield from _read_released(test or path, only)
        return
    else:
        name = name.removesuffix(".jsonl")
        sets = {name: partial(_read_own, path, name)}
    _expect(path, only, list(sets))
    yield from (read() for name, read in sets.items() if not only or name in only)


def _find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each of paper E's sets in a folder, at any depth; hidden folders are skipped."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    files_of = {facts.name: files for facts in SETS.values() if (files := [path for path in paths if _is_of(path, facts)])}
    several = [(name, files) for name, files in files_of.items() if len(files) > 1]
    doubled = [one for one in several if len({f.parent for f in one[1]}) > 1 or {f.suffix for f in one[1]} != {".parquet"}]
    if doubled or not files_of:
        what = (
            "{0} is in {1[0]} and in {1[1]}".format(*doubled[0]) if doubled else f"{folder} has no files of {', '.join(SUITES)}"
        )
        raise InputError(f"{what}; give a folder with each set once (docs/qa.md lists the files of each)")
    return files_of


def _is_of(path: Path, facts: SetFacts) -> bool:
    """Return whether a file is of a set, by its path alone. Links are not resolved: the hub's cache consists of them."""
    name = PurePosixPath((path.absolute().parent / _plain_name(path)).as_posix().lower())
    return any(name.match(pattern.format(task=facts.task).lower()) for pattern in SUITES[facts.suite].files)


def _plain_name(path: Path) -> str:
    """Return a file's name without .gz or .zst."""
    return next((path.name.removesuffix(ending) for ending in ENDINGS[1:] if path.name.endswith(ending)), path.name)


def _expect(path: Path, only: Collection[str], names: list[str]) -> None:
    for name in only:
        expect_choice(name, names, f"a set of {path}")


def _read_set(facts: SetFacts, files: list[Path], folder: Path) -> QaSet:
    suite, dropped = SUITES[facts.suite], Dropped()
    rows: Iterator[Row] = ((where, expect_object(row, where)) for where, row in _rows(files, facts, dropped))
    if suite.layout is not None:
        rows = suite.layout(rows, facts, dropped, folder)
    return _build(facts, rows, suite.fields, suite.license, dropped)


def _rows(files: list[Path], facts: SetFacts, dropped: Dropped) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) for each row. BAMBOO's jsonl has control characters inside texts, and a line that is not JSON."""
    name = SUITES[facts.suite].rows
    if facts.suite == "BAMBOO":
        for where, line in read_lines(files[0]):
            try:
                yield where, json.loads(line, strict=False)
            except ValueError:
                dropped.add("lines that are not JSON", where)
    elif name is None or files[0].suffix == ".parquet":
        yield from read_rows(files)
    else:
        for (key,), value in read_values(files[0], 1):
            if name == "":
                yield f"{files[0]}, item {key}", value
            elif name == key:
                yield from ((f"{files[0]}, {name}, item {number}", one) for number, one in enumerate(value))


def _read_own(path: Path, name: str) -> QaSet:
    """Read a user's file, all of whose rows have choices, or none."""
    rows = list(read_json(path))
    choices, fields = sum("choices" in row for _, row in rows), (*Fields(), *_OPTIONAL[:2])
    for where, row in rows:
        for field in row:
            expect_choice(field, fields, f"{where}: a field")
    if choices not in (0, len(rows)):
        raise InputError(f"{path}: {choices} of {len(rows)} questions have choices; expected all or none, in two files")
    return _build(SetFacts(name, multiple_choice=choices > 0), rows, Fields(), "", Dropped())


def _read_released(path: Path, only: Collection[str]) -> Iterator[QaSet]:
    """Yield the sets of the file of paper E's authors: SET -> ID -> point; categories are from a second file: CATEGORY -> ID.

    The documents of points are read as their units ("full_text_sentences"), not as tokens ("input_ids", "sentence_indices").

    Source: https://github.com/MambaRetriever/MambaRetriever (README.md, "Evaluation Data Structure", "License").
    """
    log.warning("%s: released under %s, not for commercial use", path, LICENSE)
    by_category = find(path.parent, BY_CATEGORY)
    categories = {key: name.lower() for (name, key), _ in read_values(by_category, 2)} if by_category else {}
    names = []
    for name, points in groupby(read_values(path, 2), key=lambda one: one[0][0]):
        names.append(name)
        if name.lower() in get_args(Category):
            raise InputError(f"{path} has the questions by category; give {TEST}, which names their sets")
        if only and name not in only:
            continue
        rows = (_point(f"{path}, {name}, {key!r}", key, point, categories) for (_, key), point in points)
        yield _build(SETS.get(name, SetFacts(name)), rows, Fields(answers="answer"), LICENSE, Dropped())
    _expect(path, only, names)


def _point(where: str, key: str, point: object, categories: Mapping[str, str]) -> Row:
    row = expect_object(point, where)
    units = texts_of(row, "full_text_sentences", where)
    sentences = tuple(pairwise(accumulate(map(len, units), initial=0)))
    category = {"category": categories[key]} if key in categories else {}
    return where, row | {"id": key, "document": "".join(units), "sentences": sentences} | category


def _build(facts: SetFacts, rows: Iterable[Row], fields: Fields, license: str, dropped: Dropped) -> QaSet:
    """Return a set of rows. Equal documents are stored once, and choices are added to questions, with letters."""
    documents: dict[str, QaDocument] = {}
    questions = []
    for number, (where, row) in enumerate(rows, start=1):
        answers, text = texts_of(row, fields.answers, where), text_of(row, fields.document, where)
        question, choices = text_of(row, fields.question, where), row.get("written", ())
        if facts.multiple_choice and fields.choices in row:
            options = texts_of(row, fields.choices, where)
            for answer in answers:
                expect_choice(answer, options, f"{where}: an answer")
            choices = tuple(f"{chr(ord('A') + i)}. {option.strip()}" for i, option in enumerate(options))
            question, answers = "\n".join([question.strip(), *choices]), [choices[options.index(one)] for one in answers]
        more = {name: row[name] for name in _OPTIONAL if name in row}
        sentences = more.pop("sentences", ())
        if len(facts.categories) == 1:
            more.setdefault("category", facts.categories[0])
        key = digest(text)
        name = str(number if row.get(fields.id) in (None, "") else row[fields.id])
        expect_fields(where, text, question, answers, **more)
        documents[key] = documents.get(key) or QaDocument(key, text, sentences)
        questions.append(QaQuestion(name, key, question, tuple(dict.fromkeys(answers)), choices, **more))
    notes = [f"{reason}: {count:,} left out, the first: {dropped.first[reason]}" for reason, count in dropped.counts.items()]
    if facts.points not in (0, len(questions)):
        notes.append(f"{len(questions):,} questions; paper E has {facts.points:,}")
    multiple_choice, suite = facts.multiple_choice, facts.suite
    return QaSet(facts.name, documents, tuple(questions), multiple_choice, suite, license, tuple(notes))
