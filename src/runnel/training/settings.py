"""The settings of a training run, as frozen dataclasses; `training.recipes` reads them from TOML.

job = "embed" | "rerank" | "sentences" | "generate"      which head is trained
[model] [data] [[data.sets]] [train]        every recipe
[long] [lora] [search] [evaluation]         optional
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

Job = Literal["embed", "rerank", "sentences", "generate"]
JOBS: tuple[Job, ...] = get_args(Job)


def _only(*jobs: Job, default: Any = None) -> Any:
    """Declare a setting that only these jobs use."""
    return dataclasses.field(default=default, metadata={"jobs": jobs})


@dataclass(frozen=True)
class ModelTable:
    """The model that a run starts from.

    Attributes:
        name: built-in name, folder or hub id.
        new_head: give a model without a head for the job one with random weights.
        layers: train the layers that an encoder reads sentences with, through its head, in place of the head.
        template: how a pair is written, "rankmamba", "rankmamba-code", "ssm-rerankers" or "pair"; default: the model's own.
        pooling: an embedder's pooling, "cls", "eos" or "mean"; default: the model's own.
        unit: the unit that a sentence retriever scores, "sentence", "clauses" or "paragraph"; default: the model's own.
    """

    name: str = "pocket"
    new_head: bool = _only("rerank", "sentences", default=False)
    layers: bool = _only("sentences", default=False)
    template: str | None = _only("rerank")
    pooling: Literal["cls", "eos", "mean"] | None = _only("embed")
    unit: Literal["sentence", "clauses", "paragraph"] | None = _only("sentences")


@dataclass(frozen=True)
class DataSet:
    """One file or folder of examples.

    Attributes:
        path: relative to --data, or to the recipe's own folder.
        format: "evidence", whose sentences become triples; default: those of `training.data.read_triples`.
        instructions: each query gets one of them, in turn, in `DataTable.prompt`.
    """

    path: str
    format: Literal["evidence"] | None = _only("embed", "rerank")
    instructions: tuple[str, ...] = _only("embed", default=())


@dataclass(frozen=True)
class DataTable:
    """The training data.

    Texts are cut to the `max_...` tokens, special tokens and prompts included; cut texts are counted. None: nothing is cut.

    Attributes:
        prompt: text before queries; "{instruction}" is replaced by the example's instruction, or else by one of the data set's.
            None: the model's query prompt. A model's document prompt is always put before documents.
        negatives: documents that do not answer, for each one that does. An embedder's example may have fewer, or none.
        negative_source: "given" with the examples, or "random" documents of other examples.
        samples: rows per answering document, each with its own negatives.
        max_tokens: the most tokens of a whole pair; only its document is cut.
        lengths: a longer document is cut to a window of one of these numbers of tokens, drawn once, when the run reads its data.
            The window holds all evidence; if none is long enough, the document stays whole. None: no cuts.
        target: what a model learns to write after a question about a document: the "answer", or the sentences of the "evidence".
        within: use only examples with all evidence in this part of the document, e.g. [0.67, 1.0] (paper E, table 23).
        exclude: test sets, files or folders; examples that overlap with them are removed and counted (docs/data.md).
        rows: use only the first rows of each set, this many.
        held_out: rows of each set that are not trained on; their loss is reported at the end, and picks the learning rate.
    """

    sets: tuple[DataSet, ...] = ()
    prompt: str | None = _only("embed")
    negatives: int = _only("embed", "rerank", default=0)
    negative_source: Literal["given", "random"] = _only("embed", "rerank", default="given")
    samples: int = _only("embed", "rerank", default=1)
    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    max_tokens: int | None = _only("rerank")
    lengths: tuple[int, ...] = _only("sentences", default=())
    target: Literal["answer", "evidence"] = _only("generate", default="answer")
    within: tuple[float, float] = _only("sentences", default=(0.0, 1.0))
    exclude: tuple[str, ...] = ()
    rows: int | None = None
    held_out: int = 0


@dataclass(frozen=True)
class TrainTable:
    """Settings of the optimizer (AdamW) and of the run.

    Attributes:
        batch: queries of one step, over all devices.
        group: queries that one device runs at a time; an embedder's batch is completed by the gradient cache, other batches by
            gradient accumulation. None: all.
        group_tokens: the most tokens at a time, except for a single longer document; may reduce the documents of a step.
        max_steps: stop after this many steps instead of `epochs`.
        temperature: temperature of InfoNCE.
        warmup: number of steps, or, below 1, share of all steps.
        min_learning_rate: the end of the cosine schedule.
        precision: "bf16" is autocast over fp32 weights.
        checkpoints: number of checkpoints kept, evenly spread along the run; a stopped run resumes from the last.
    """

    learning_rate: float = 1e-5
    batch: int = 32
    group: int | None = None
    group_tokens: int = _only("sentences", "generate", default=16384)
    epochs: float = 1.0
    max_steps: int | None = None
    temperature: float = _only("embed", default=0.05)
    warmup: float = 0.0
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    min_learning_rate: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpoints: int = 1
    seed: int = 0


@dataclass(frozen=True)
class LongTable:
    """Settings for reading long texts in training; see `training.segments.Long`."""

    segment_tokens: int | None = None
    recompute: bool = False
    gradient_segments: int | None = None


@dataclass(frozen=True)
class LoraTable:
    """Low-rank adapters on all linear layers; `four_bit` stores these layers in NF4 (QLoRA)."""

    r: int = 16
    alpha: int = 16
    dropout: float = 0.0
    four_bit: bool = False


@dataclass(frozen=True)
class SearchTable:
    """A search for the learning rate before the run: 1/`share` of the data in batches 1/`share` as large, with as many steps.

    Attributes:
        metric: the held-out figure that decides: a loss, the lowest, or a recall of the job "sentences", the highest.
    """

    learning_rates: tuple[float, ...] = ()
    share: int = 16
    metric: str = "loss"


@dataclass(frozen=True)
class EvaluationTable:
    """The lengths at which `runnel evaluate RUN/model` reads texts, cut to the `max_...` tokens.

    Attributes:
        top_k: numbers of sentences at which recall on held-out documents is measured.
    """

    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    max_tokens: int | None = _only("rerank")
    top_k: tuple[int, ...] = _only("sentences", default=())


@dataclass(frozen=True)
class Recipe:
    """A recipe with all overrides applied. `lora` and `search` are None if not used."""

    job: Job
    model: ModelTable = ModelTable()
    data: DataTable = DataTable()
    train: TrainTable = TrainTable()
    long: LongTable = LongTable()
    lora: LoraTable | None = None
    search: SearchTable | None = None
    evaluation: EvaluationTable = EvaluationTable()
