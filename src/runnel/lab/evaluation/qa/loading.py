"""Read question answering sets from files: the 41 sets of paper E (docs/papers.md) as their authors
publish them, the file that paper E's authors released, or a user's own file.

    read_qa_sets   the sets of a folder or file: `_find_files` and `_read_set` for the sets of paper
                   E, `_read_own` for a user's file, `_read_released` for the released one
    layouts        for a suite whose rows are not plain questions, a function that makes rows with
                   the fields of a user's file of them: `_infinitebench`, `_leval`, `_bamboo`,
                   `_muld`, `_elitr`
    _build         rows -> a `QaSet`

`sets.tsv` has paper E's name of each set, its suite and its task there, its categories, whether it
is multiple-choice, and the number of its questions. In the rows that a layout makes, "written" are
choices that the question already has in its text. Wrong rows of published files are counted and
left out.

Source: paper E, tables 7 and 8; its released code (rag_pipeline/evaluation.py) names the
multiple-choice sets. The category of ELITR_Bench_QA is unreadable in our copy of table 8; it is
conversational, as table 7's 707 questions of this category include its 130 questions.

Sources of the suites: InfiniteBench, https://github.com/OpenBMB/InfiniteBench (src/eval_utils.py);
L-Eval,
https://github.com/OpenLMLab/LEval (README.md); BAMBOO, https://github.com/RUCAIBox/BAMBOO
(datasets, prompt.json); MuLD, https://github.com/ghomasHudson/muld (muld.py); ELITR-Bench,
https://github.com/utter-project/ELITR-Bench (README.md, preparation/extract_transcripts.py).
"""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import accumulate, groupby, pairwise, takewhile
from pathlib import Path, PurePosixPath
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple, cast, get_args

from runnel.checks import by_id, expect_choice, utf8
from runnel.config import read_row
from runnel.errors import InputError, ReadError
from runnel.files import decode, digest, open_bytes
from runnel.jobs.progress import notify
from runnel.lab.evaluation.published import Row, read_rows
from runnel.lab.evaluation.qa.json_values import expect_object, read_values
from runnel.lab.training.data import Dropped
from runnel.lab.training.evidence import LICENSE
from runnel.text.dialogue import AnswerType
from runnel.text.lines import ENDINGS, find, read_json, read_lines, text_of, texts_of

# the kinds of documents of paper E, table 7
Category = Literal["educational", "creative", "official", "conversational"]


@dataclass(frozen=True, slots=True)
class QaDocument:
    """A document."""

    id: str  # unique in its set
    text: str  # never cut
    # [start, end) character spans that tile the text, if the data has such spans
    sentences: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class QaQuestion:
    """A question about one document, which it names by id."""

    id: str  # unique in its set
    document: str
    # the text that a language model reads, with the choices in it if it is multiple-choice
    question: str
    # Each of them is right. For a multiple-choice question, the right choice, as `question` has it.
    answers: tuple[str, ...]
    # the choices as `question` has them; (): free-form, or the data has them only in the question
    choices: tuple[str, ...] = ()
    answer_type: AnswerType = "sentence"  # how long the answer should be
    category: Category | None = None  # the category of its document; None: the data has none


@dataclass(frozen=True, eq=False)
class QaSet:
    """A set of questions with their documents, in memory. A document of several questions is stored
    once.
    """

    name: str  # paper E's name, or the name of a user's file
    documents: Mapping[str, QaDocument]  # the documents of all questions, by id
    # at least one, in the order of the data; no two have the same id
    questions: tuple[QaQuestion, ...]
    # all questions are multiple-choice: they are judged as such, and have no token F1
    multiple_choice: bool = False
    suite: str = ""  # the benchmark that the set is from; "": none
    license: str = ""  # the license of the data; "": unknown
    notes: tuple[str, ...] = ()  # differences from the set in the paper, in words, for the user

    def __post_init__(self) -> None:
        by_id(self.questions, f"the questions of {self.name}")


class Fields(NamedTuple):
    """The names of a question's values in a row. The defaults are the names in a user's file, and
    in the rows that layouts make.
    """

    document: str = "document"
    question: str = "question"
    answers: str = "answers"
    id: str = "id"
    choices: str = "choices"  # texts, of which some are the answers


class SetFacts(NamedTuple):
    """The facts about a set that are known before it is read. `name` is paper E's name or the name
    of a user's file, `points` the number of paper E's questions.
    """

    name: str
    suite: str = ""
    task: str = ""
    categories: tuple[Category, ...] = ()
    multiple_choice: bool = False
    points: int = 0


RowLayout = Callable[[Iterable[Row], SetFacts, Dropped, Path], Iterator[Row]]


class Suite(NamedTuple):
    """A benchmark that sets are from."""

    source: str  # its data set on the hub, or its repository
    license: str  # the license that its authors state for the data; "" if they state none
    fields: Fields = Fields()
    # ends of paths, in any case, without .gz and .zst
    files: tuple[str, ...] = ("{task}.jsonl", "{task}/test*.parquet")
    layout: RowLayout | None = None  # makes plain questions of rows; the folder holds further files
    # What a file is, and where it has the rows. None: jsonl or parquet, its rows; "": parquet, or
    # one list in JSON, its items; NAME: one JSON object, whose list NAME has them.
    rows: str | None = None


_MASKED = (
    "A character's name in the script is replaced by $$MASK$$. Which character is it? Answer with"
    " the name before the colon."
)
# These sets have documents twice. Paper E counts 130 and 161 questions, without repetitions.
_TWICE = ("legal_contract_qa", "scientific_qa")
_CHOICE = re.compile(
    r"^[ \t]*\(?([A-Z])[.):]", re.MULTILINE
)  # the beginning of "A. Paris", "(A) Paris"
_LETTERS = re.compile(r"\s*\(?([A-Z]+)(?:[.):\s]|\Z)")  # right choices: "B", "BD", "(B) Paris"
_PARTS = re.compile(r"^(Document|Question):[ \t]*\n", re.MULTILINE)
_ASKED = re.compile(r"\s*([^?\n]{1,300}\?)\s*(.*)", re.DOTALL)  # a question, then the script


def _infinitebench(
    rows: Iterable[Row], about: SetFacts, dropped: Dropped, folder: Path
) -> Iterator[Row]:
    """Make plain questions of InfiniteBench's rows. The right option may be followed by its letter;
    a question about a masked name may be missing.
    """
    for where, row in rows:
        if about.multiple_choice:
            row["answer"] = texts_of(row, "answer", where)[:1]
        elif about.task == "longdialogue_qa_eng" and not text_of(row, "input", where).strip():
            row["input"] = _MASKED
        yield where, row


def _leval(rows: Iterable[Row], about: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Make plain questions of L-Eval's rows: each is a document with its "instructions" and
    "outputs". A right choice is a letter, letters ("BD") or the choice itself.
    """
    seen: set[tuple[str, str, str]] = set()
    for number, (where, row) in enumerate(rows, start=1):
        text = text_of(row, "input", where)
        questions = texts_of(row, "instructions", where)
        answers = texts_of(row, "outputs", where)
        if len(questions) != len(answers):
            raise InputError(
                f"{where}: {len(questions)} instructions and {len(answers)} outputs; expected an"
                " output for each"
            )
        pairs = zip(questions, answers, strict=True)
        for position, (question, answer) in enumerate(pairs, start=1):
            asked = (text, question.strip(), answer)
            if about.task in _TWICE and asked in seen:
                dropped.add("repeated questions", where)
                continue
            seen.add(asked)
            made: dict[str, object] = {
                "id": f"{number}-{position}",
                "document": text,
                "question": question,
                "answers": [answer],
            }
            if about.multiple_choice:
                choices = _choices(question)
                letters = _LETTERS.match(answer)
                if letters is None or not set(letters[1]) <= choices.keys():
                    raise InputError(
                        f"{where}, question {position}: the right choice is {answer!r}, which the"
                        " question lacks"
                    )
                made["answers"] = ["\n".join(choices[letter] for letter in letters[1])]
                made["written"] = tuple(choices.values())
            yield where, made


def _choices(question: str) -> dict[str, str]:
    """Return the choices at the end of a question by letter: lines "A. ..." or "(A) ...", each up
    to the next one.
    """
    marks = list(_CHOICE.finditer(question))
    # From the last "A." on: the question itself may have a list. The letters of all marks joined
    # have a letter for each mark, so a letter's place is its mark's number.
    first = "".join(mark[1] for mark in marks).rfind("A")
    marks = marks[first:] if first >= 0 else []
    if len(marks) < 2 or "".join(mark[1] for mark in marks) != ascii_uppercase[: len(marks)]:
        return {}
    edges = pairwise([*(mark.start() for mark in marks), len(question)])
    return {mark[1]: question[a:b].strip() for mark, (a, b) in zip(marks, edges, strict=True)}


def _bamboo(rows: Iterable[Row], about: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Make plain questions of BAMBOO's rows: about numbers in documents (altqa), about the last
    speaker of a meeting (meetingpred; the wording of the question is ours), or with options.
    """
    for number, (where, row) in enumerate(rows, start=1):
        content = text_of(row, "content", where)
        answer = text_of(row, "answer", where)
        fits = True
        made: dict[str, object] = {"id": number, "document": content, "answers": [answer]}
        if about.task.startswith("altqa"):
            _, *parts = _PARTS.split(content)  # name, text, name, text
            texts = dict(zip(parts[::2], parts[1::2], strict=True))
            fits = len(parts) == 4 and len(texts) == 2
            made["document"] = texts.get("Document", "").strip()
            made["question"] = f"{texts.get('Question', '').strip()}\nThe answer is a number."
        elif about.task.startswith("meetingpred"):
            said = content.rstrip().removesuffix("said by")
            fits = said != content.rstrip()
            words = said.rstrip().rpartition("\n")[2].strip()
            made["question"] = f"Which of the speakers says this at the end of the meeting: {words}"
        else:
            choices = _usable(row, dropped, where)
            right = [choice for choice in choices if choice.startswith(answer[:1])]
            if len(answer) != 1 or not right:
                dropped.add("questions without usable options", where)
                continue
            question = "\n".join([text_of(row, "question", where).strip(), *choices])
            made |= {"question": question, "answers": right[:1], "written": choices}
        if not fits:
            raise InputError(
                f'{where}: expected one line "Document:" and one line "Question:", or of a meeting'
                f' "said by" at the end in "content", got {content[-60:]!r}'
            )
        yield where, made


def _usable(row: Mapping[str, object], dropped: Dropped, where: str) -> tuple[str, ...]:
    options = [option.strip() for option in texts_of(row, "options", where)]
    pairs = takewhile(
        lambda pair: re.match(rf"{pair[1]}[.:]", pair[0]),
        zip(options, ascii_uppercase, strict=False),
    )
    choices = tuple(option for option, _ in pairs)
    if len(choices) < min(len(options), 4):
        return ()
    if len(choices) < len(options):
        dropped.add("texts after the options", where)
    return choices


def _muld(rows: Iterable[Row], about: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Make plain questions of MuLD's rows: a text is the question, up to its question mark, and
    then the script. The classes of all rows are the choices.
    """
    texts = [
        (where, text_of(row, "input", where), texts_of(row, "output", where)) for where, row in rows
    ]
    classes = sorted({answer for _, _, answers in texts for answer in answers})
    for where, text, answers in texts:
        asked = _ASKED.match(text)
        if asked is None:
            raise InputError(
                f'{where}: expected "input" to begin with a question that ends in "?", got'
                f" {text[:60]!r}"
            )
        yield (
            where,
            {"document": asked[2], "question": asked[1], "answers": answers, "choices": classes},
        )


@dataclass(frozen=True)
class _Meeting:
    id: str
    questions: tuple[dict[str, Any], ...]


def _elitr(rows: Iterable[Row], about: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Make plain questions of ELITR-Bench's rows. The transcripts come from the ELITR Minuting
    Corpus: MEETING.txt, or the first MEETING/transcript_MAN*.txt.
    """
    for where, row in rows:
        meeting = read_row(_Meeting, row, where)
        name = meeting.id
        paths: list[Path] = []
        if re.fullmatch(r"\w[\w.-]*", name):  # because it becomes a part of a path
            paths = sorted(folder.rglob(f"{name}.txt"))
            paths = paths or sorted(folder.rglob(f"{name}/transcript_MAN*.txt"))
        if not paths:
            raise ReadError(
                f"{folder} has no transcript of the meeting {name!r}, NAME.txt or"
                " NAME/transcript_MAN*.txt; put the ELITR Minuting Corpus"
                " (https://lindat.mff.cuni.cz/repository/xmlui/handle/11234/1-4692) into it"
            )
        with open_bytes(paths[0]) as file:
            transcript = decode(file.read(), str(paths[0])).text
        for asked in meeting.questions:
            made = {
                "id": f"{name}-{asked.get('id')}",
                "document": transcript,
                "answers": asked.get("groundtruth-answer"),
            }
            yield f"{where}, question {asked.get('id')}", asked | made


_HUB = "https://huggingface.co/datasets/"
_CAC = "muld_Character_Archetype_Classification"
_LONGBENCH = Fields("context", "input", "answers", "_id")
_INFINITE = Fields("context", "input", "answer", "id", "options")
SUITES = {
    "LongBench": Suite(f"{_HUB}THUDM/LongBench", "MIT", _LONGBENCH),
    "InfiniteBench": Suite(
        f"{_HUB}xinrongzhang2022/InfiniteBench", "Apache-2.0", _INFINITE, layout=_infinitebench
    ),
    "L-Eval": Suite(f"{_HUB}L4NLP/LEval", "GPL-3.0", layout=_leval),
    "LV-Eval": Suite(f"{_HUB}Infinigence/LVEval", "MIT", _LONGBENCH),
    "BAMBOO": Suite(
        "https://github.com/RUCAIBox/BAMBOO", "MIT", files=("{task}.jsonl",), layout=_bamboo
    ),
    "ELITR-Bench": Suite(
        "https://github.com/utter-project/ELITR-Bench",
        "CC-BY-4.0",
        files=("{task}.json",),
        layout=_elitr,
        rows="meetings",
    ),
    "DocFinQA": Suite(
        f"{_HUB}kensho/DocFinQA",
        "MIT",
        Fields("Context", "Question", "Answer"),
        ("docfinqa/{task}.json", "docfinqa/data/{task}*.parquet"),
        rows="",
    ),
    "MuLD": Suite(
        f"{_HUB}ghomasHudson/{_CAC}",
        "",
        files=("{task}_test.json", f"{_CAC.lower()}/data/test*.parquet"),
        layout=_muld,
    ),
}


_LINES = (
    files("runnel.lab.evaluation").joinpath("qa/sets.tsv").read_text(encoding="utf-8").splitlines()
)
# paper E's name -> facts, in the order of its table 8
SETS = {
    name: SetFacts(
        name,
        suite,
        task,
        cast("tuple[Category, ...]", tuple(categories.split())),
        choices == "yes",
        int(points),
    )
    for name, suite, task, categories, choices, points in csv.reader(_LINES[1:], delimiter="\t")
}

TEST, BY_CATEGORY = "mambaretriever_test.json", "mambaretriever_test_per_category.json"
_OPTIONAL = ("answer_type", "category", "sentences")


def read_qa_sets(path: str | Path, only: Collection[str] = ()) -> Iterator[QaSet]:
    """Yield the sets of a folder or file, each read when it is asked for, so that only one needs to
    be in memory.

    Args:
        path: a folder with files of any of the suites of `SUITES`, at any depth; one such file; the
            test file that paper E's authors released, or its folder; or jsonl with "question",
            "document" and "answers" (docs/qa.md).
        only: paper E's names of the sets to read; (): all that are found.

    Raises:
        InputError: nothing is found, a name is unknown or its set is missing, a set has files in
            two places, or a row has another form; the message has the place.
        ReadError: a file is missing or damaged.
        MissingDependency: parquet needs pyarrow, zstd zstandard.
    """
    path = Path(path).expanduser()
    test = find(path, TEST)
    name = _plain_name(path)
    facts = next((facts for facts in SETS.values() if _is_of(path, facts)), None)
    sets: dict[str, Callable[[], QaSet]]
    if path.is_dir() and not test:
        sets = {
            name: partial(_read_set, SETS[name], files, path)
            for name, files in _find_files(path).items()
        }
    elif facts:
        sets = {facts.name: partial(_read_set, facts, [path], path.parent)}
    elif test or name.endswith(".json"):
        yield from _read_released(test or path, only)
        return
    else:
        name = name.removesuffix(".jsonl")
        sets = {name: partial(_read_own, path, name)}
    _expect_names(only, sets, path)
    yield from (read() for name, read in sets.items() if not only or name in only)


def _find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each of paper E's sets in a folder, at any depth; hidden folders are
    skipped.
    """
    remedy = "give a folder with each set once (docs/qa.md lists the files of each)"
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    files_of: dict[str, list[Path]] = {}
    for name, facts in SETS.items():
        files = [path for path in paths if _is_of(path, facts)]
        places = {path.parent for path in files}
        if len(files) > 1 and (len(places) > 1 or {path.suffix for path in files} != {".parquet"}):
            raise InputError(f"{name} is in {files[0]} and in {files[1]}; {remedy}")
        if files:
            files_of[name] = files
    if not files_of:
        raise InputError(f"{folder} has no files of {', '.join(SUITES)}; {remedy}")
    return files_of


def _is_of(path: Path, about: SetFacts) -> bool:
    """Return whether a file belongs to a set, by its path alone. Links are not followed: the hub's
    cache consists of links to files with other names.
    """
    name = PurePosixPath((path.absolute().parent / _plain_name(path)).as_posix().lower())
    return any(
        name.match(pattern.format(task=about.task).lower()) for pattern in SUITES[about.suite].files
    )


def _plain_name(path: Path) -> str:
    return next(
        (path.name.removesuffix(ending) for ending in ENDINGS[1:] if path.name.endswith(ending)),
        path.name,
    )


def _expect_names(only: Collection[str], names: Iterable[str], path: Path) -> None:
    for name in only:
        expect_choice(name, list(names), f"a set of {path}")


def _read_set(about: SetFacts, files: list[Path], folder: Path) -> QaSet:
    suite = SUITES[about.suite]
    dropped = Dropped()
    rows: Iterator[Row] = (
        (where, expect_object(row, where)) for where, row in _rows(files, about, dropped)
    )
    if suite.layout is not None:
        rows = suite.layout(rows, about, dropped, folder)
    return _build(about, rows, suite.fields, suite.license, dropped)


def _rows(files: list[Path], about: SetFacts, dropped: Dropped) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) for each row. BAMBOO's jsonl has control characters inside texts, and a
    line that is not JSON.
    """
    name = SUITES[about.suite].rows
    if about.suite == "BAMBOO":
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
                for number, item in enumerate(value):
                    yield f"{files[0]}, {name}, item {number}", item


def _read_own(path: Path, name: str) -> QaSet:
    """Read a user's file, all of whose rows have choices, or none."""
    rows = list(read_json(path))
    choices = sum("choices" in row for _, row in rows)
    for where, row in rows:
        for field in row:
            expect_choice(field, (*Fields(), "answer_type", "category"), f"{where}: a field")
    if choices not in (0, len(rows)):
        raise InputError(
            f"{path}: {choices} of {len(rows)} questions have choices; expected all or none, in two"
            " files"
        )
    return _build(SetFacts(name, multiple_choice=choices > 0), rows, Fields(), "", Dropped())


def _read_released(path: Path, only: Collection[str]) -> Iterator[QaSet]:
    """Yield the sets of the file of paper E's authors, who call a question with its document a
    point: SET -> ID -> point; categories are from a second file: CATEGORY -> ID.

    The documents of points are read as their units ("full_text_sentences"), not as tokens
    ("input_ids", "sentence_indices").

    Source: https://github.com/MambaRetriever/MambaRetriever (README.md, "Evaluation Data
        Structure", "License").
    """
    notify(f"{path}: released under {LICENSE}, not for commercial use")
    by_category = find(path.parent, BY_CATEGORY)
    categories = (
        {key: name.lower() for (name, key), _ in read_values(by_category, 2)} if by_category else {}
    )
    names = []
    for name, points in groupby(read_values(path, 2), key=lambda point: point[0][0]):
        names.append(name)
        if name.lower() in get_args(Category):
            raise InputError(
                f"{path} has the questions by category; give {TEST}, which names their sets"
            )
        if not only or name in only:
            rows = (
                _point(f"{path}, {name}, {key!r}", key, point, categories)
                for (_, key), point in points
            )
            yield _build(
                SETS.get(name, SetFacts(name)), rows, Fields(answers="answer"), LICENSE, Dropped()
            )
    _expect_names(only, names, path)


def _point(where: str, key: str, point: object, categories: Mapping[str, str]) -> Row:
    row = expect_object(point, where)
    units = texts_of(row, "full_text_sentences", where)
    sentences = tuple(pairwise(accumulate(map(len, units), initial=0)))
    category = {"category": categories[key]} if key in categories else {}
    return where, row | {"id": key, "document": "".join(units), "sentences": sentences} | category


def _build(
    about: SetFacts, rows: Iterable[Row], fields: Fields, license: str, dropped: Dropped
) -> QaSet:
    """Return a set of rows. Equal documents are stored once, and choices are added to questions,
    with letters.
    """
    documents: dict[str, QaDocument] = {}
    questions = []
    for number, (where, row) in enumerate(rows, start=1):
        # 1. the texts, with the choices in the question
        answers = texts_of(row, fields.answers, where)
        text = text_of(row, fields.document, where)
        question = text_of(row, fields.question, where)
        choices = row.get("written", ())
        if about.multiple_choice and fields.choices in row:
            options = texts_of(row, fields.choices, where)
            for answer in answers:
                expect_choice(answer, options, f"{where}: an answer")
            choices = tuple(
                f"{chr(ord('A') + i)}. {option.strip()}" for i, option in enumerate(options)
            )
            question = "\n".join([question.strip(), *choices])
            answers = [choices[options.index(answer)] for answer in answers]
        # 2. what a row may have besides, and the names of document and question
        optional = {name: row[name] for name in _OPTIONAL if row.get(name) is not None}
        sentences = optional.pop("sentences", ())
        if len(about.categories) == 1:
            optional.setdefault("category", about.categories[0])
        key = digest(text)
        name = str(number if row.get(fields.id) in (None, "") else row[fields.id])
        # 3. checks
        texts = [("document", text), ("question", question)]
        texts += [("answer", answer) for answer in answers or [""]]
        for what, value in texts:
            if not value.strip():
                raise InputError(f"{where}: the {what} is empty; expected a text")
            utf8(value, f"{where}: the {what}")
        if "answer_type" in optional:
            expect_choice(
                optional["answer_type"], get_args(AnswerType), f"{where}: the answer type"
            )
        if "category" in optional:
            expect_choice(optional["category"], get_args(Category), f"{where}: the category")
        # 4. the records
        documents[key] = documents.get(key) or QaDocument(key, text, sentences)
        questions.append(
            QaQuestion(name, key, question, tuple(dict.fromkeys(answers)), choices, **optional)
        )
    notes = [
        f"{reason}: {count:,} left out, the first: {dropped.first[reason]}"
        for reason, count in dropped.counts.items()
    ]
    if about.points not in (0, len(questions)):
        notes.append(f"{len(questions):,} questions; paper E has {about.points:,}")
    return QaSet(
        about.name,
        documents,
        tuple(questions),
        about.multiple_choice,
        about.suite,
        license,
        tuple(notes),
    )
