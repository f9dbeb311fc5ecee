"""ELITR-Bench: questions about meetings.

The file elitr-bench-qa_test2.json has "meetings", each with an "id" and "questions" with "id", "question" and
"groundtruth-answer". The transcripts are those of the ELITR Minuting Corpus, not in ELITR-Bench: MEETING.txt, as ELITR-Bench's
script copies them, or MEETING/transcript_MAN*.txt, as the corpus has them, anywhere in the folder; of several, the first.

Source: https://github.com/utter-project/ELITR-Bench (README.md, preparation/extract_transcripts.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.building import SetBuilder
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of
from runnel.text.reading import decode, open_bytes


def read(files: list[Path], facts: SetFacts, folder: Path) -> QaSet:
    """Read the set.

    Args:
        folder: holds the transcripts, at any depth.

    Raises:
        InputError, ReadError: the file has another form, or a transcript is missing; the message names it.
    """
    builder = SetBuilder(facts)
    for meeting in _objects(_load(files[0]), "meetings", files[0]):
        name = text_of(meeting, "id", files[0])
        transcript = _transcript(folder, name)
        for one in _objects(meeting, "questions", f"{files[0]}, {name}"):
            key = text_of(one, "id", f"{files[0]}, {name}")
            where = f"{files[0]}, {name}, question {key}"
            answer = text_of(one, "groundtruth-answer", where)
            builder.add(where, transcript, text_of(one, "question", where), [answer], id=f"{name}-{key}")
    return builder.build()


def _load(path: Path) -> object:
    with open_bytes(path) as file:
        text = decode(file.read(), str(path)).text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"{path} is not valid JSON ({error}); unzip it again") from error


def _objects(value: object, name: str, where: object) -> list[dict[str, Any]]:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InputError(f'{where}: expected a list of objects as "{name}"')
    return found


def _transcript(folder: Path, name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name):  # it becomes a part of a path
        raise InputError(f"the id of a meeting is {name!r}; expected letters, digits, _, - and .")
    paths = sorted(folder.rglob(f"{name}.txt")) or sorted(folder.rglob(f"{name}/transcript_MAN*.txt"))
    if not paths:
        raise ReadError(
            f"{folder} has no transcript {name}.txt or {name}/transcript_MAN*.txt; "
            "put the ELITR Minuting Corpus (https://lindat.mff.cuni.cz/repository/xmlui/handle/11234/1-4692) into it"
        )
    with open_bytes(paths[0]) as file:
        return decode(file.read(), str(paths[0])).text
