"""Remembered documents: what a model keeps of each, so that a query costs only its own tokens.

An index, a folder of `Reranker.remember` and the cache of `runnel find` hold the same bytes (`Remembered.to_bytes`).

D  width of hidden vectors   T  tokens   n  documents
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.state import State
from runnel.errors import InputError, NumericalError, StateError
from runnel.files import digest, write
from runnel.models.base import Model
from runnel.models.container import damage_in_state, pack, unpack
from runnel.models.heads import WITHOUT_TOKENS
from runnel.models.items import mark_pair
from runnel.ops.backend import inference
from runnel.request import Progress, Request, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

log = logging.getLogger("runnel")
Precision = Literal["fp32", "bf16", "int8"]
_TOGETHER = 128  # documents tokenized together
_STATES_BYTES = 1 << 26  # of states continued in one step; more were no faster


class Remembered(ABC):
    """What a model keeps of a document; see `DocumentState` and `SentenceVectors`."""

    text: str

    @abstractmethod
    def arrays(self) -> Mapping[str, Tensor | np.ndarray]:
        """Return everything except the text, for `of`."""

    @classmethod
    @abstractmethod
    def of(cls, text: str, arrays: Mapping[str, Tensor]) -> Self:
        """Make a document from `arrays`; a KeyError names one that is missing."""

    @property
    def size(self) -> int:
        """Bytes, without the text."""
        return sum(array.nbytes for array in self.arrays().values())

    def to_bytes(self, fingerprint: str = "") -> bytes:
        """Return everything except the text, for `from_bytes`. `fingerprint`: of the model, if nothing else names it."""
        return pack(self.arrays(), fingerprint, self.text)

    @classmethod
    def from_bytes(
        cls, data: bytes, text: str, place: str = "a remembered document", fingerprint: str | None = None, *, check: bool = True
    ) -> Self:
        """Read what `to_bytes` wrote; arguments and errors as for `unpack`."""
        with damage_in_state(place):
            return cls.of(text, unpack(data, place, fingerprint, text if check else None))


@dataclass(frozen=True, eq=False)
class Memory:
    """Documents remembered by `Reranker.remember`, by id, in order: in RAM, or in files that are read when they are ranked."""

    backbone: Backbone  # of the model that remembers them
    documents: Mapping[str, Remembered | StoredDocument]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, name: str) -> Remembered:
        document = self.documents[name]
        return document.load() if isinstance(document, StoredDocument) else document

    def entries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every document, in order."""
        return [(name, document.text) for name, document in self.documents.items()]

    def select(self, ids: Sequence[str]) -> Memory:
        """Return a memory of the documents with these ids, in this order. Documents are shared, not copied."""
        if (unknown := next((name for name in ids if name not in self.documents), None)) is not None:
            raise InputError(f"document {unknown!r} is not in this memory; remember it first, or leave it out")
        return Memory(self.backbone, {name: self.documents[name] for name in ids})


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A remembered document in a file, which was checked when it was found or written."""

    path: Path
    text: str
    kind: type[Remembered]
    fingerprint: str

    def load(self, *, check: bool = False) -> Remembered:
        """Read the file. Raises StateError if it is damaged; changed numbers are only seen with `check`."""
        with damage_in_state(place := f"the remembered document {self.path}"):
            return self.kind.from_bytes(self.path.read_bytes(), self.text, place, self.fingerprint, check=check)

    def is_sound(self) -> bool:
        """Return whether the file exists and is not damaged."""
        try:
            return self.path.exists() and self.load(check=True) is not None
        except StateError as error:
            log.warning("%s", error)
            return False


def remember_in(
    folder: Path,
    documents: Mapping[str, str | DocumentText],
    backbone: Backbone,
    precision: Precision,
    read: Callable[[Iterable[str | DocumentText]], Iterable[Remembered]],
    kind: type[Remembered],
) -> Memory:
    """Return a memory of documents in files, one for each text; `read` reads the texts without one, and damaged files again."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold what is known of texts
    texts, by = {text_of(document): document for document in documents.values()}, backbone.fingerprint()
    files = {text: folder / f"{digest(by, precision, text)}.safetensors" for text in texts}
    stored = {text: StoredDocument(file, text, kind, by) for text, file in files.items()}
    missing = [text for text, document in stored.items() if not document.is_sound()]
    for text, document in zip(missing, read(texts[text] for text in missing), strict=True):
        write(files[text], document.to_bytes(by))
    return Memory(backbone, {name: stored[text_of(document)] for name, document in documents.items()})


@dataclass(frozen=True, eq=False)
class DocumentState(Remembered):
    """The state after a document, in a precision, with the mean of its hidden vectors and its distinct token ids."""

    text: str
    tensors: Mapping[str, Tensor]  # "tokens" (1,), "mean" (D,), "ids" (sorted), "state.NAME" and, in 8 bits, "scale.NAME"

    @classmethod
    def of(cls, text: str, arrays: Mapping[str, Tensor]) -> DocumentState:
        return cls(text, arrays)

    def arrays(self) -> Mapping[str, Tensor]:
        return self.tensors

    @classmethod
    def keep(cls, text: str, state: State, mean: Tensor, ids: np.ndarray, precision: Precision) -> DocumentState:
        """Keep a state of one row in a precision; ids are sorted."""
        tensors = {"tokens": state.tokens, "mean": mean, "ids": torch.from_numpy(ids)}
        whole = sum(tensor.numel() for tensor in state.tensors.values())
        for name, tensor in state.tensors.items():
            if 100 * tensor.numel() < whole:  # small, and may scale the others (xLSTM's m and n)
                tensors[f"state.{name}"] = tensor
            elif precision == "int8" and tensor.shape[-1] >= 16:  # short last dimensions (conv tails) are a few percent
                scale = (tensor.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-30)
                tensors |= {f"state.{name}": (tensor / scale).round().to(torch.int8), f"scale.{name}": scale}
            else:
                tensors[f"state.{name}"] = tensor if precision == "fp32" else tensor.to(torch.bfloat16)
        return cls(text, tensors)

    @property
    def mean(self) -> Tensor:
        """(D,) fp32"""
        return self.tensors["mean"].float()

    @property
    def ids(self) -> np.ndarray:
        """The sorted distinct token ids of the document."""
        return self.tensors["ids"].int().numpy()

    def fill(self, state: State, place: int) -> None:
        """Fill a row of a state in place: rows are as large as a processor's cache, and there are many."""
        for name, tensor in state.tensors.items():
            tensor[place].copy_(self.tensors[f"state.{name}"][0])
            if f"scale.{name}" in self.tensors:
                tensor[place].mul_(self.tensors[f"scale.{name}"][0])
        state.tokens[place] = self.tensors["tokens"][0]


class StateScorer:
    """A scorer of documents whose states are continued with a query, all with the same tokens."""

    kind = DocumentState
    reads_pairs = True  # a document that is not remembered is read together with the query

    def __init__(self, model: Model) -> None:
        self.model, self._head, self.template = model, model.head("rerank"), model.templates["rerank"]
        self._room: State | None = None  # allocated by the last ranking from a memory, reused by the next

    @property
    def remembers(self) -> bool:
        """Whether documents are read before the query, so that they can be remembered."""
        return self.template.fields[0] == "document" and self.model.backbone.recurrent

    def remember(
        self, documents: Iterable[str | DocumentText], precision: Precision, progress: Progress | None = None
    ) -> Iterator[DocumentState]:
        """Read documents to remember them, in order."""
        count = TokenCount(progress)
        tokenizer, before, texts = self.model.tokenizer, self.template.before("query"), map(text_of, documents)
        while batch := list(itertools.islice(texts, _TOGETHER)):
            requests = []
            for text, encoded in zip(batch, before.encode_batch(tokenizer, "document", batch), strict=True):
                rendered = before.render(tokenizer, document=encoded.ids)
                ranges = np.array([[rendered.slices["document"].start, len(rendered.ids)]])
                requests.append(Request(rendered.ids, ranges=ranges, keep_state=True, tag=(text, np.unique(encoded.ids))))
            for result in self.model.engine.map(requests, count.add):
                mean, (text, unique) = result.get().means[0], result.tag
                assert result.state is not None
                yield DocumentState.keep(text, result.state, mean, unique, precision)

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        query_ids = self.template.encode_query(self.model.tokenizer, query)
        scores = np.concatenate([np.zeros(0, np.float32), *self._scores(query_ids, memory, progress)])
        places: dict[str, int] = {}  # the first of each text, so that equal texts tie; an unknown text ("") keeps its own
        texts = enumerate(text for _, text in memory.entries())
        return scores[[places.setdefault(text, place) if text else place for place, text in texts]]

    def _scores(self, query_ids: np.ndarray, memory: Memory, progress: Progress | None) -> Iterator[np.ndarray]:
        """Yield scores in batches of documents: all continue with the same tokens, so their states are the rows of one step."""
        rendered = self.template.starting_at("query").render(self.model.tokenizer, query=query_ids)
        ids, start, backbone = rendered.ids, rendered.slices["query"].start, self.model.backbone
        rows = max(1, min(self.model.engine.step_tokens // len(ids), _STATES_BYTES // backbone.state_bytes, len(memory)))
        # Allocating memory costs as much as filling it, so it is kept; a concurrent ranking in another thread allocates its own.
        room, self._room = self._room, None
        if room is None or len(room) < rows:
            room = backbone.new_state(rows)
        names, count = iter(memory.documents), TokenCount(progress, len(memory) * len(ids))
        while documents := [cast(DocumentState, memory[name]) for name in itertools.islice(names, rows)]:
            scores = self._score_batch(documents, room, ids, start, query_ids)
            if not np.isfinite(scores).all():
                raise NumericalError("a score is NaN or infinite; the weights or the remembered documents may be damaged")
            count.add(len(documents) * len(ids))
            scores[[not len(document.ids) for document in documents]] = WITHOUT_TOKENS
            yield scores.astype(np.float32)
        self._room = room

    @inference()
    def _score_batch(
        self, documents: Sequence[DocumentState], room: State, ids: np.ndarray, start: int, query_ids: np.ndarray
    ) -> np.ndarray:
        """Return scores (n,) of documents continued, in `room`, with `ids` (T,), in which the query starts at `start`."""
        engine, count = self.model.engine, len(documents)
        state = State({name: tensor[:count] for name, tensor in room.tensors.items()}, room.tokens[:count])
        with damage_in_state("a remembered document"):
            for place, document in enumerate(documents):
                document.fill(state, place)
            means = torch.stack([document.mean for document in documents]).view(count, self.model.backbone.hidden_size)
        if self._head.inputs == "matches":
            matches = [mark_pair(self.model, ids, start, query_ids, document.ids) for document in documents]
            hidden = engine.extend(state, ids, np.stack([marks for marks, _ in matches]))
            weight = self.model.weight[torch.from_numpy(ids[start:].astype(np.int64))]
            mean = (weight @ hidden[:, start:]) / weight.sum()
            values = [mean, hidden[:, -1], means, torch.from_numpy(np.concatenate([share for _, share in matches]))]
        elif self._head.inputs == "state":
            engine.extend(state, ids, keep_states=True)
            values = [state[self._head.state].cpu()]
        else:
            values = [engine.extend(state, ids)[:, 0 if self._head.pooling == "cls" else -1]]
        scores: np.ndarray = self._head(*values).numpy()
        return scores
