"""Examples for training a model to reply: prompts about documents, as `runnel qa` asks them, and the replies to learn.

P  tokens of a reply, with the end marker
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from datasets import Features, List, Value

from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.language_model import encode_prompt
from runnel.request import Request
from runnel.text.dialogue import AnswerType, answer_reply, ask_answer, ask_copies, copies_reply, dialogue
from runnel.text.lines import keys, read_json
from runnel.text.tokenizer import Tokenizer
from runnel.training.data import Evidence, read_evidence
from runnel.training.decontaminate import Decontaminator
from runnel.training.rows import RowData, write_rows
from runnel.training.sentence_table import label_sentences, units_of

log = logging.getLogger("runnel")

Target = Literal["answer", "evidence"]

_FEATURES = Features({"id": Value("string"), "ids": List(Value("int32")), "start": Value("int64"), "tokens": Value("int64")})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt, and the reply that the model learns to write after it."""

    prompt: str
    reply: str
    id: str


def read_exchanges(path: str | Path, target: Target, guard: Decontaminator) -> Iterator[Exchange]:
    """Yield a question about a whole document and its answer or its evidence, from jsonl, plain or compressed.

    Args:
        target: "answer": rows have a "question", a "document" and an "answer", or "answers", of which the first is learned, and
            may have an "answer_type", "sentence" or "paragraph". "evidence": the rows of `read_evidence`; the model learns to
            copy the sentences that `label_sentences` labels.
        guard: leaves out documents that share sentences with test sets.

    Raises:
        InputError: a row has another form, or no answer; the message has the line.
    """
    if target == "evidence":
        for example in guard.clean(read_evidence(path)):
            prompt = ask_copies(example.query, example.document)
            yield Exchange(dialogue(prompt), copies_reply(_evidence(example)), example.id)
        return
    for where, row in read_json(path):
        question, document, answer, length = _answered(row, where)
        if not guard.contaminated(Evidence(question, document, ())):
            prompt = ask_answer(question, document, length, excerpts=False)
            yield Exchange(dialogue(prompt), answer_reply(answer), str(row.get("id", where)))


def _evidence(example: Evidence) -> Iterator[str]:
    sentences = units_of(example)
    for start, end in sentences[label_sentences(example.document, sentences, example.spans)].tolist():
        yield example.document[start:end]


def _answered(row: dict[str, Any], where: str) -> tuple[str, str, str, AnswerType]:
    """Return the question, the document, the answer and its type."""
    question, document = row.get("question", row.get("query")), row.get("document")
    answers = row.get("answers", row.get("answer"))
    answer = answers[0] if isinstance(answers, list) and answers else answers
    if not isinstance(question, str) or not isinstance(document, str) or not question.strip() or not document.strip():
        raise InputError(f'{where}: expected texts as "question" and "document", got {keys(row)}')
    if not isinstance(answer, str) or not answer.strip():
        raise InputError(
            f'{where}: the row has no answer to learn; expected a text as "answer", or a list of them as "answers". Remove the '
            "row, or train on the evidence: --set data.target=evidence"
        )
    if "choices" in row:
        raise InputError(f'{where}: "choices" are not put into the prompt; write them into the question and remove the key')
    length = row.get("answer_type", "sentence")
    if length not in get_args(AnswerType):
        raise InputError(f"{where}: the answer type is {length!r}; expected {' or '.join(get_args(AnswerType))}")
    return question, document, answer, length


@dataclass(frozen=True, eq=False)
class Completion:
    """A prompt with its reply, as one row.

    Attributes:
        request: all tokens but the last; its positions are those before each token of the reply.
        targets: (P,) int64 the tokens of the reply, the last of which is the end marker.
    """

    request: Request
    targets: np.ndarray

    @property
    def tokens(self) -> int:
        """The tokens that are read."""
        return len(self.request.ids)


def make_completion(ids: np.ndarray, start: int) -> Completion:
    """Return the completion of a row of ids (T,) whose reply begins at `start`, at least 1."""
    return Completion(Request(ids[:-1], np.arange(start - 1, len(ids) - 1)), ids[start:].astype(np.int64))


class CompletionData(RowData[Completion]):
    """Completions in a file from `write`."""

    @classmethod
    def write(cls, path: str | Path, model: Model, exchanges: Iterable[Exchange]) -> CompletionData:
        """Encode exchanges as the model reads and writes them, one at a time, and write them to a file.

        Raises:
            InputError: there are none.
        """
        write_rows(Path(path), _FEATURES, (_row(model.tokenizer, one) for one in exchanges))
        data = cls(path)
        log.info("%d examples, %d tokens", len(data), data.lengths.sum())
        return data

    def _make(self, row: dict[str, Any]) -> Completion:
        return make_completion(np.asarray(row["ids"], dtype=np.int32), int(row["start"]))


def _row(tokenizer: Tokenizer, one: Exchange) -> dict[str, Any]:
    prompt, reply = encode_prompt(tokenizer, one.prompt), tokenizer.encode_inside(f" {one.reply}").ids
    ids = np.concatenate([prompt, reply, np.array([tokenizer.end_id], dtype=np.int32)])
    return {"id": one.id, "ids": ids, "start": len(prompt), "tokens": len(ids) - 1}
