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
    """The model that a run starts from. Template, pooling and the unit that a retriever scores are by default its own."""

    name: str = "pocket"  # built-in name, folder or hub id
    new_head: bool = _only("rerank", "sentences", default=False)  # with random weights, for a model without a head for the job
    layers: bool = _only("sentences", default=False)  # train the layers that an encoder reads sentences with, not the head
    template: str | None = _only("rerank")  # how a pair is written, "rankmamba", "rankmamba-code", "ssm-rerankers" or "pair"
    pooling: Literal["cls", "eos", "mean"] | None = _only("embed")
    unit: Literal["sentence", "clauses", "paragraph"] | None = _only("sentences")


@dataclass(frozen=True)
class DataSet:
    """One file or folder of examples."""

    path: str  # relative to --data, or to the recipe's own folder
    format: Literal["evidence"] | None = _only("embed", "rerank")  # its sentences become triples; None: one of `read_triples`
    instructions: tuple[str, ...] = _only("embed", default=())  # each query gets one of them, in turn, in `DataTable.prompt`


@dataclass(frozen=True)
class DataTable:
    """The training data.

    Texts are cut to the `max_...` tokens, special tokens and prompts included; cut texts are counted. None: nothing is cut.
    """

    sets: tuple[DataSet, ...] = ()
    # Text before queries; "{instruction}" is replaced by the example's instruction, or else by one of the data set's. None: the
    # model's query prompt. A model's document prompt is always put before documents.
    prompt: str | None = _only("embed")
    negatives: int = _only("embed", "rerank", default=0)  # for each document that answers; an embedder's example may have fewer
    negative_source: Literal["given", "random"] = _only("embed", "rerank", default="given")  # "random": of other examples
    samples: int = _only("embed", "rerank", default=1)  # rows per answering document, each with its own negatives
    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    max_tokens: int | None = _only("rerank")  # of a whole pair; only its document is cut
    # A longer document is cut to a window of one of these numbers of tokens, drawn once, when the run reads its data. The window
    # holds all evidence; if none is long enough, the document stays whole. Empty: no cuts.
    lengths: tuple[int, ...] = _only("sentences", default=())
    target: Literal["answer", "evidence"] = _only("generate", default="answer")  # what is written after a question and a document
    within: tuple[float, float] = _only("sentences", default=(0.0, 1.0))  # the part of a document that has all evidence: table 23
    exclude: tuple[str, ...] = ()  # test sets, files or folders; examples that overlap are removed and counted (docs/data.md)
    rows: int | None = None  # use only the first rows of each set, this many
    held_out: int = 0  # rows of each set that are not trained on; their loss is reported, and picks the learning rate


@dataclass(frozen=True)
class TrainTable:
    """Settings of the optimizer (AdamW) and of the run."""

    learning_rate: float = 1e-5
    batch: int = 32  # queries of one step, over all devices
    # Queries that one device runs at a time; None: all. The gradient cache completes an embedder's batch, accumulation others.
    group: int | None = None
    # The most tokens at a time, except for a single longer document; may reduce the documents of a step.
    group_tokens: int = _only("sentences", "generate", default=16384)
    epochs: float = 1.0
    max_steps: int | None = None  # stop after this many steps instead of `epochs`
    temperature: float = _only("embed", default=0.05)  # of InfoNCE
    warmup: float = 0.0  # number of steps, or, below 1, share of all steps
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    min_learning_rate: float = 0.0  # the end of the cosine schedule
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"  # "bf16" is autocast over fp32 weights
    checkpoints: int = 1  # kept, evenly spread along the run; a stopped run resumes from the last
    seed: int = 0


@dataclass(frozen=True)
class LongTable:
    """Settings for reading long texts in training; see `models.graph.Long`."""

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
    """A search for the learning rate before the run: 1/`share` of the data in batches 1/`share` as large, with as many steps."""

    learning_rates: tuple[float, ...] = ()
    share: int = 16
    metric: str = "loss"  # the held-out figure that decides: a loss, the lowest, or a recall of the job "sentences", the highest


@dataclass(frozen=True)
class EvaluationTable:
    """The lengths at which `runnel lab evaluate RUN/model` reads texts, cut to the `max_...` tokens."""

    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    max_tokens: int | None = _only("rerank")
    top_k: tuple[int, ...] = _only("sentences", default=())  # sentences at which recall on held-out documents is measured


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
