"""Train recurrent language models to reply.

In: questions about documents, as `lab qa` asks them, and the replies to learn. Out: completions in
the tokens of a model, and their Trainer.

The loss is the cross entropy of the replies' tokens, end markers included.

n  completions of a batch   P  tokens of their replies

Source: paper E (docs/papers.md), sections 7.3 and 7.4, a conditional language modeling objective.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Features, List, Value
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.checks import expect_choice
from runnel.errors import InputError
from runnel.jobs.progress import inform
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.document_trainer import ModelModule, PackedTrainer
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.tables import RowData, label_sentences, make_rows, units_of, write_rows
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long, read
from runnel.models.recurrent.language_model import embedding_table, encode_prompt, lm_head
from runnel.request import Request, as_tensor
from runnel.text.dialogue import (
    AnswerType,
    answer_reply,
    ask_answer,
    ask_copies,
    copies_reply,
    dialogue,
)
from runnel.text.lines import keys, read_json, text_of, texts_of
from runnel.text.tokenizer import Tokenizer

# tokens whose logits are in memory at a time: 50 MB each for logits and their gradient with a
# vocabulary of 50,000
_LOGITS = 256
_FEATURES = Features(
    {
        "id": Value("string"),
        "ids": List(Value("int32")),  # token ids of the prompt, the reply and the end marker
        "start": Value("int64"),  # the place in `ids` where the reply begins
        "tokens": Value("int64"),  # the tokens of the item: all but the last
    }
)


class Exchange(NamedTuple):
    """A prompt, and the reply that the model learns to write after it."""

    prompt: str
    reply: str
    id: str


def read_exchanges(
    path: str | Path, target: Literal["answer", "evidence"], guard: Decontaminator
) -> Iterator[Exchange]:
    """Yield a question about each document of jsonl (docs/data.md), and its answer, or the
    sentences of its evidence to copy.
    """
    if target == "evidence":
        for example in guard.clean(read_evidence(path)):
            spans = units_of(example)
            chosen = spans[label_sentences(example.document, spans, example.spans)].tolist()
            reply = copies_reply(example.document[start:end] for start, end in chosen)
            yield Exchange(dialogue(ask_copies(example.query, example.document)), reply, example.id)
        return
    for where, row in read_json(path):
        question = text_of(row, "question" if "question" in row else "query", where)
        document = text_of(row, "document", where)
        answer = "".join(texts_of(row, "answers" if "answers" in row else "answer", where)[:1])
        if not (question.strip() and document.strip() and answer.strip()) or "choices" in row:
            raise InputError(
                f'{where}: expected texts as "question", which has all choices, "document" and'
                f' "answer" (or "answers", a list), got {keys(row)}; correct the row, or train on'
                " the evidence: --set data.target=evidence"
            )
        length: AnswerType = row.get("answer_type", "sentence")
        expect_choice(length, get_args(AnswerType), f"{where}: the answer type")
        if not guard.contaminated(Evidence(question, document, ())):
            prompt = dialogue(ask_answer(question, document, length, excerpts=False))
            yield Exchange(prompt, answer_reply(answer), str(row.get("id", where)))


@dataclass(frozen=True, eq=False)
class Completion:
    """A prompt with its reply: a request of all tokens but the last, at the positions before each
    token of `targets` (P,).
    """

    request: Request
    targets: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.request.ids)


def make_completion(ids: np.ndarray, start: int) -> Completion:
    """Return the completion of a row of ids, whose reply begins at `start`, at least 1."""
    # the hidden vector before each token of the reply, from which the LM head predicts the token
    request = Request(ids[:-1], np.arange(start - 1, len(ids) - 1))
    return Completion(request, ids[start:].astype(np.int64))


class CompletionData(RowData[Completion]):
    """Completions in the tokens of the model."""

    @classmethod
    def write(
        cls, path: str | Path, model: Model, exchanges: Iterable[Exchange], fingerprint: str = ""
    ) -> Self:
        """Encode exchanges as the model reads and writes them, and write them to a file."""
        make = partial(_completion_row, model.tokenizer)
        rows = make_rows(_FEATURES, make, exchanges, Counter())  # nothing is counted
        write_rows(Path(path), _FEATURES, rows, fingerprint=fingerprint)
        data = cls(path)
        inform(f"{len(data)} examples, {data.lengths.sum()} tokens")
        return data

    def _make(self, row: dict[str, Any]) -> Completion:
        return make_completion(np.asarray(row["ids"], dtype=np.int32), int(row["start"]))


def _completion_row(
    tokenizer: Tokenizer, number: int, exchange: Exchange, counts: Counter[str]
) -> dict[str, object]:
    prompt = encode_prompt(tokenizer, exchange.prompt)
    reply = tokenizer.encode_inside(f" {exchange.reply}").ids
    end = np.array([tokenizer.end_id], dtype=np.int32)
    ids = np.concatenate([prompt, reply, end])
    return {"id": exchange.id, "ids": ids, "start": len(prompt), "tokens": len(ids) - 1}


class GeneratorModule(ModelModule):
    """The parameters of a model as a module for the Trainer: the backbone and the LM head are
    trained.
    """

    def __init__(self, model: Model, long: Long) -> None:
        super().__init__(model, long, ("generate",))

    def forward(self, items: Sequence[Completion]) -> tuple[Tensor, list[tuple[()]]]:
        """Return the loss of each completion (n,), summed over its reply, and no scores."""
        results = read(self.model, [item.request for item in items], self.long)
        device = self.backbone.device
        hidden = torch.cat([as_tensor(result.hidden) for result in results])
        targets = torch.from_numpy(np.concatenate([item.targets for item in items])).to(device)
        counts = torch.tensor([len(item.targets) for item in items])
        owners = torch.arange(len(items)).repeat_interleave(counts).to(device)
        head = lm_head(self.model)
        table = embedding_table(self.backbone)

        def token_losses(hidden: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(head(hidden, table), targets, reduction="none")

        # the head stays in fp32; `Long.bf16` is for the backbone
        with torch.autocast(device.type, enabled=False):
            losses = torch.cat(
                [
                    checkpoint(token_losses, *piece, use_reentrant=False)
                    for piece in zip(hidden.split(_LOGITS), targets.split(_LOGITS), strict=True)
                ]
            )
        return losses.new_zeros(len(items)).index_add(0, owners, losses), [()] * len(items)


class GeneratorTrainer(PackedTrainer):
    """The Trainer for recurrent language models that reply: the loss of a step is the mean over the
    tokens of its replies.
    """

    module = GeneratorModule

    def weight(self, item: Completion) -> int:
        return len(item.targets)
