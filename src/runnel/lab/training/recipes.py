"""Recipes: the settings of a training run in a small TOML file, read strictly into a `Recipe`.

job = "embed" | "rerank" | "sentences" | "generate"      which head is trained
[model] [data] [[data.sets]] [train]        every recipe
[long] [lora] [search] [evaluation]         optional; [search] is for the learning rate

A recipe may also have [sizes.NAME], with the differences for a model of that size (--size).

The file has, in this order: a dataclass for each table (`ModelTable` to `EvaluationTable`), and
`Recipe`, which holds them; the public functions; their private steps.

    read      find the file -> _load (TOML) -> _build with each size -> _merged with the size and
              the --set changes (_change) -> parse
    parse     _build (names, types, no setting of another job) -> _check (ranges, contradictions)
    write, differences     use _flat: a nested table as pairs "table.key", value
"""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from runnel import files
from runnel.checks import expect_choice, expect_count, refuse_when
from runnel.config import arguments
from runnel.errors import InputError

Job = Literal["embed", "rerank", "sentences", "generate"]
JOBS: tuple[Job, ...] = get_args(Job)


def _only(*jobs: Job, default: Any = None) -> Any:
    """Declare a setting that only these jobs use."""
    return field(default=default, metadata={"jobs": jobs})


@dataclass(frozen=True)
class ModelTable:
    """The model that a run starts from. None for `template`, `pooling` or `unit` means the model's
    own.
    """

    name: str = "pocket"  # built-in name, folder or hub id
    # train a new head with random weights, for a model that has no head for the job
    new_head: bool = _only("rerank", "sentences", default=False)
    # True: train the layers that an encoder reads sentences with, and leave the head as it is;
    # False: train the head, and leave these layers
    layers: bool = _only("sentences", default=False)
    # how query and document are written as one text: "rankmamba" or "ssm-rerankers", as in these
    # papers, "rankmamba-code", as in the former's checkpoints, or "pair", as the tokenizer does
    template: str | None = _only("rerank")
    pooling: Literal["cls", "eos", "mean"] | None = _only("embed")
    # the unit that a retriever scores
    unit: Literal["sentence", "clauses", "paragraph"] | None = _only("sentences")


@dataclass(frozen=True)
class DataSet:
    """One file or folder of examples."""

    path: str  # relative to --data, or to the recipe's own folder
    # "evidence": `read_evidence` reads it, and its sentences become triples; None: `read_triples`
    format: Literal["evidence"] | None = _only("embed", "rerank")
    # the first query gets the first instruction in `DataTable.prompt`, the second the next, in turn
    instructions: tuple[str, ...] = _only("embed", default=())


@dataclass(frozen=True)
class DataTable:
    """The training data.

    Texts are cut to the `max_...` tokens, special tokens and prompts included; cut texts are
    counted. None: nothing is cut.
    """

    sets: tuple[DataSet, ...] = ()
    # Text before queries; "{instruction}" is replaced by the example's instruction, or else by one
    # of the data set's. None: the model's query prompt. A model's document prompt is always put
    # before documents.
    prompt: str | None = _only("embed")
    # documents without the answer, for each document with it; an embedder's example may have fewer
    negatives: int = _only("embed", "rerank", default=0)
    # "given": the example's own negatives; "random": documents of other examples
    negative_source: Literal["given", "random"] = _only("embed", "rerank", default="given")
    # rows per answering document, each with its own negatives
    samples: int = _only("embed", "rerank", default=1)
    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    # the most tokens of a whole pair; only its document is cut
    max_tokens: int | None = _only("rerank")
    # A longer document is cut to a window of one of these numbers of tokens, drawn once, when the
    # run reads its data. The window holds all evidence; if none is long enough, the document stays
    # whole. Empty: no cuts.
    lengths: tuple[int, ...] = _only("sentences", default=())
    # the text that the model learns to write after a question and a document
    target: Literal["answer", "evidence"] = _only("generate", default="answer")
    # Only examples whose evidence is all in this part of the document, from 0 (its start) to 1
    # (its end): docs/papers.md, E, table 23.
    within: tuple[float, float] = _only("sentences", default=(0.0, 1.0))
    # test sets, files or folders; examples that overlap are removed and counted (docs/data.md)
    exclude: tuple[str, ...] = ()
    rows: int | None = None  # use only the first rows of each set, this many
    # rows of each set that are not trained on; their loss is reported, and picks the learning rate
    held_out: int = 0


@dataclass(frozen=True)
class TrainTable:
    """Settings of the optimizer (AdamW) and of the run."""

    learning_rate: float = 1e-5
    batch: int = 32  # queries of one step, over all devices
    # Queries that one device runs at a time, to save memory; None: all of its part of the batch.
    # The loss is still of the whole batch: an embedder's by the gradient cache, others' by
    # accumulated gradients.
    group: int | None = None
    # The most tokens at a time, except for a single longer document; may reduce the documents of a
    # step.
    group_tokens: int = _only("sentences", "generate", default=16384)
    epochs: float = 1.0
    max_steps: int | None = None  # stop after this many steps instead of `epochs`
    temperature: float = _only("embed", default=0.05)  # the temperature of InfoNCE
    # How the loss of a document is normalized: as paper E says (docs/papers.md), or as its authors'
    # code does, whose loss is up to twice as large.
    normalization: Literal["paper", "code"] = _only("sentences", default="paper")
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
    """Settings for reading long texts in training; see `models.recurrent.graph.Long`."""

    segment_tokens: int | None = None
    recompute: bool = False


@dataclass(frozen=True)
class LoraTable:
    """Low-rank adapters on all linear layers; `four_bit` stores these layers in NF4 (QLoRA)."""

    r: int = 16
    alpha: int = 16
    dropout: float = 0.0
    four_bit: bool = False


@dataclass(frozen=True)
class SearchTable:
    """A search for the learning rate before the run. Each rate is tried on 1/`share` of the data in
    batches 1/`share` as large, so a trial has as many steps as the run.
    """

    learning_rates: tuple[float, ...] = ()
    share: int = 16
    # The figure of the held-out rows that decides: "loss", where the lowest wins, or a recall of
    # the job "sentences", where the highest wins.
    metric: str = "loss"


@dataclass(frozen=True)
class EvaluationTable:
    """The lengths at which `runnel lab evaluate RUN/model` reads texts, cut to the `max_...`
    tokens.
    """

    max_query_tokens: int | None = _only("embed")
    max_document_tokens: int | None = _only("embed")
    max_tokens: int | None = _only("rerank")
    # Numbers of sentences: recall on held-out documents is measured among the best k of each.
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


_TABLES: dict[str, type[Any]] = {
    "model": ModelTable,
    "data": DataTable,
    "train": TrainTable,
    "long": LongTable,
    "lora": LoraTable,
    "search": SearchTable,
    "evaluation": EvaluationTable,
}

SHIPPED = Path(__file__).parent / "recipes"


def shipped() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find(name: str) -> Path:
    """Return the file of a shipped recipe, or the path itself."""
    path = SHIPPED / f"{name}.toml"
    if path.is_file():
        return path
    if not Path(name).is_file():
        expect_choice(name, shipped(), "the recipe, if it is not the path of a TOML file,")
    return Path(name)


def read(name: str, *, size: str | None = None, changes: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe by name or path, with the settings of one of its sizes and then `changes`,
    "key=value" as TOML.
    """
    path = find(name)
    content, by_size = _load(path)
    # These calls are only for their errors; their recipes are not used. First the recipe without a
    # size, so that its errors do not name a size, then every size, also those not asked for.
    _build(content, str(path))
    for part in by_size:
        _build(_merged(content, by_size[part]), f"{path}: sizes.{part}")
    if size is not None:
        expect_choice(size, by_size, f"the size of {path.name}")
        content = _merged(content, by_size[size])
    for change in changes:
        content = _merged(content, _change(change))
    return parse(content, f"{path} with --set" if changes else str(path))


def parse(content: Mapping[str, Any], place: str) -> Recipe:
    """Return the recipe in a TOML table without `sizes`. `place` names it in messages."""
    recipe = _build(content, place)
    _check(recipe, place)
    return recipe


def write(recipe: Recipe, path: Path) -> None:
    """Write a recipe as TOML, from which `read` returns an equal recipe; the keys are those of
    --set.
    """
    unused = _unused(recipe.job)
    files.write(
        path,
        "".join(
            f"{key} = {_toml(value)}\n"
            for key, value in _flat(asdict(recipe))
            if value is not None and key not in unused
        ),
    )


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """Return the settings in which two recipes differ, as "table.key: this, other"."""
    mine, theirs = (dict(_flat(asdict(r))) for r in (recipe, other))
    return [
        f"{key}: {mine.get(key)!r}, {theirs.get(key)!r}"
        for key in mine | theirs
        if mine.get(key) != theirs.get(key)
    ]


def _load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a recipe's TOML; return its tables without [sizes], and the tables of each size."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return content, dict(content.pop("sizes", {}))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is not valid TOML, with tables as sizes: {error}; correct the file"
        ) from error


def _merged(base: Mapping[str, Any], over: Any) -> dict[str, Any]:
    """Return `base` with the values of `over` in place of its own; tables are merged by key."""
    merged = dict(base)
    for key, value in dict(over).items():
        tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if tables else value
    return merged


def _change(change: str) -> dict[str, Any]:
    """Parse "table.key=value" as {"table": {"key": value}}; the value is TOML, or a text without
    quotes.
    """
    key, _, text = change.partition("=")
    settings = {
        f"{table}.{field.name}": (table, field.name)
        for table, kind in _TABLES.items()
        for field in fields(kind)
    }
    expect_choice(key.strip(), settings, "the key of --set TABLE.KEY=VALUE")
    table, name = settings[key.strip()]
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # an unquoted string
    return {table: {name: value}}


def _unused(job: Job) -> set[str]:
    """Return the keys of the settings that a job does not use."""
    tables = _TABLES | {"data.sets": DataSet}
    return {
        f"{table}.{field.name}"
        for table, kind in tables.items()
        for field in fields(kind)
        if job not in field.metadata.get("jobs", JOBS)
    }


def _build(content: Mapping[str, Any], place: str) -> Recipe:
    """Return the recipe in a TOML table; raise InputError for an unknown setting, a value of the
    wrong type, or a setting that the job does not use. `place` names the table in messages.
    """
    expect_choice(content.get("job"), JOBS, f"{place}: job")
    # `arguments` checks the names and types of all settings
    recipe = Recipe(**arguments(Recipe, content, place, defaults=True, error=InputError))
    sets = ({"data": {"sets": table}} for table in content.get("data", {}).get("sets", ()))
    # `_flat` goes into tables, not into the list of sets: each set counts as a table data.sets.
    given = {key for table in (content, *sets) for key, _ in _flat(table)}
    if unused := sorted(given & _unused(recipe.job)):
        raise InputError(
            f"{place}: the job {recipe.job!r} does not use {', '.join(unused)}; remove it"
        )
    return recipe


_FROM_ZERO = ("data.negatives", "data.held_out", "train.seed")  # other whole numbers begin at 1
_ABOVE_ZERO = ("train.learning_rate", "train.epochs", "train.temperature", "search.learning_rates")


def _check(recipe: Recipe, path: str) -> None:
    """Raise InputError for the first setting that is out of range or contradicts another."""
    train = recipe.train
    data = recipe.data
    search = recipe.search
    low, high = data.within
    instructed = any(table.instructions for table in data.sets)
    wrong: list[tuple[object, str]] = [  # conditions that no recipe may meet, and messages
        (max(train.betas) >= 1, f"train.betas are {list(train.betas)}; expected numbers below 1"),
        (
            not 0 <= low < high <= 1,
            f"data.within is {[low, high]}; expected two rising numbers from 0 to 1",
        ),
        (
            recipe.job == "rerank" and data.negatives < 1,
            f"data.negatives is {data.negatives}; expected at least 1",
        ),
        (
            train.min_learning_rate and train.schedule != "cosine",
            "train.min_learning_rate needs the cosine schedule; remove it or set train.schedule",
        ),
        (
            search is not None and not (search.learning_rates and data.held_out),
            "[search] needs learning_rates, and data.held_out rows to compare them on",
        ),
        (
            search is not None and search.share > 0 and train.batch % search.share,
            f"train.batch = {train.batch} is not a multiple of search.share; correct one of the"
            " two",
        ),
        (
            instructed and "{instruction}" not in (data.prompt or ""),
            "instructions need {instruction} in data.prompt; add it or remove them",
        ),
    ]
    for name, value in _flat(asdict(recipe)):
        least = "above 0" if name in _ABOVE_ZERO else "from 0"
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int:
                expect_count(number, f"{path}: {name}", 0 if name in _FROM_ZERO else 1)
            elif type(number) is float:
                fits = 0 < number < math.inf or (number == 0 and name not in _ABOVE_ZERO)
                wrong.append((not fits, f"{name} is {number}; expected a number {least}"))
    refuse_when(*((holds, f"{path}: {message}") for holds, message in wrong))


def _toml(value: Any) -> str:
    """Return a value as TOML. JSON's texts, numbers and Booleans are also TOML's."""
    if isinstance(value, tuple):
        between = ",\n  " if any(isinstance(item, dict) for item in value) else ", "
        return "[" + between.join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        pairs = (f"{key} = {_toml(item)}" for key, item in value.items() if item)
        return "{" + ", ".join(pairs) + "}"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables as ("table.key", value)."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, value
