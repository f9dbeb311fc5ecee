"""Write examples as rows of Arrow files, so that memory does not depend on their number. In the
order of this file:

1. Files of rows, for all: `write_rows`, `is_written`, `make_rows`, and `RowData`, which reads them.
2. Evidence, for sentence retrievers: `label_sentences` says which sentences answer, `choose_window`
   cuts a long document, and `SentenceData` writes and reads the rows (`_FEATURES`), in tokens.
3. Triples, for embedders and rerankers: `write_triple_table` writes the rows that
   sentence-transformers expects, in text. There is a row for each answering document (and sample):

    embed     query, positive, negative_1, ..., negative_n, negatives, row
    rerank    query, docs (the answering document first), labels, row

   `negatives` is the number of negatives that a row has, the other columns are null. `row` names
   the origin of a row, for messages.

S  sentences of a document
"""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import torch.utils.data
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from numpy.typing import NDArray

from runnel.checks import refuse_when
from runnel.errors import InputError
from runnel.files import replacing
from runnel.jobs.progress import inform, notify, notify_when
from runnel.lab.training.data import Evidence, Triple
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.processes import in_processes
from runnel.lab.training.recipes import DataSet, DataTable, Recipe
from runnel.lab.training.triples import read_triples
from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.scanner import ItemMaker
from runnel.text.sentences import TokenUnits, split_sentences

Made = TypeVar("Made")
_NEGATIVES_FROM = (
    "find negatives with `runnel lab mine`, or use documents of other queries: --set"
    " data.negative_source=random"
)
# the label of a negative: 0 after the softmax over labels, in which the answering document has 1
_NOT_THE_ONE = float("-inf")


def write_rows(
    path: Path,
    features: Features,
    rows: Iterable[dict[str, object] | pa.Table],
    *,
    source: object = "the data",
    fingerprint: str = "",
) -> None:
    """Write rows, or tables of some, to a file, one at a time. `fingerprint`: see `is_written`.
    Raises InputError, which names their source, if there are none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as file,
        ArrowWriter(path=str(file), features=features, fingerprint=fingerprint) as writer,
    ):
        for row in rows:
            write = writer.write_table if isinstance(row, pa.Table) else writer.write
            write(row)
        written, _ = writer.finalize()
        if not written:
            raise InputError(f"{source} has no examples to train on")


def is_written(path: Path, fingerprint: str) -> bool:
    """Return whether a file of rows is there, whole, and made of what this fingerprint stands for.

    Raises InputError for one that is made of something else.
    """
    if not path.exists():
        return False
    with pa.memory_map(str(path)) as file:
        # where `ArrowWriter` of the library datasets stores the fingerprint
        stored = json.loads(pa.ipc.open_stream(file).schema.metadata[b"huggingface"])
    if stored["fingerprint"] == fingerprint:
        inform(f"{path} is prepared already")
        return True
    raise InputError(
        f"{path} was prepared from other files, settings or another tokenizer than this run's: the"
        f" data or the model have changed; train in another folder (--to), or delete {path.parent}"
        " to prepare them again"
    )


def make_rows(
    features: Features,
    make: Callable[[int, Any, Counter[str]], dict[str, object]],
    examples: Iterable[Any],
    counts: Counter[str],
) -> Iterator[pa.Table]:
    """Yield tables of the rows that `make` makes of examples and their numbers, in all processes;
    what it counts is added to `counts`.
    """
    for _, (table, new) in in_processes(partial(_make_table, features, make), enumerate(examples)):
        counts.update(new)
        yield table


def _make_table(
    features: Features,
    make: Callable[[int, Any, Counter[str]], dict[str, object]],
    examples: list[tuple[int, Any]],
) -> tuple[pa.Table, Counter[str]]:
    counts: Counter[str] = Counter()
    rows = [make(number, example, counts) for number, example in examples]
    columns = {name: [row[name] for row in rows] for name in features}
    return pa.table(columns, schema=features.arrow_schema), counts


def expect_left(rows: object, source: object, held_out: int) -> None:
    """Raise InputError if no rows are left to train on."""
    if not rows:
        raise InputError(
            f"{source}: data.held_out = {held_out} leaves no example to train on; lower it, or add"
            " examples"
        )


class RowData(torch.utils.data.Dataset[tuple[str, Made]], Generic[Made]):
    """Rows with an "id", token ids and a number of "tokens" in a file from `write`, made into items
    on access.
    """

    def __init__(self, path: str | Path) -> None:
        self._table = Dataset.from_file(str(path)).with_format("numpy")
        self.lengths: NDArray[np.int64] = np.asarray(self._table["tokens"][:], dtype=np.int64)

    @abstractmethod
    def _make(self, row: dict[str, object]) -> Made:
        """Return the item of a row."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[str, Made]:
        row = self._table[int(index)]
        return str(row["id"]), self._make(row)


_FEATURES = Features(
    {
        "id": Value("string"),
        "query": List(Value("int32")),  # token ids, without the template
        "ids": List(Value("int32")),  # token ids of the document
        # (S+1,): sentence s has the tokens [bounds[s], bounds[s+1]), perhaps none
        "bounds": List(Value("int32")),
        # (S,): the token at which a sentence is scored, its last one with a visible character
        "ends": List(Value("int32")),
        "labels": List(Value("bool")),  # (S,): whether a sentence answers
        "tokens": Value("int64"),  # all tokens that are read, the query's and the template's too
    }
)


def units_of(example: Evidence) -> np.ndarray:
    """Return the spans (S, 2) of an example's own units, or of the sentences of its document."""
    return np.array(example.units) if example.units else split_sentences(example.document)


def label_sentences(
    document: str, sentences: np.ndarray, evidence: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Label the sentences that share at least half of themselves, or half of an evidence span, with
    an evidence span.

    So the sentence around a short answer is positive, as are the sentences of a long passage, and
    every span makes at least one sentence positive. A span that only slightly overlaps a sentence
    does not: one false positive weighs as much as hundreds of negatives in the loss. Only
    characters that are not whitespace count. Sentences (S, 2) tile the text, labels (S,) are bool.
    """
    labels = np.zeros(len(sentences), dtype=bool)
    for start, end in evidence:
        assert document[start:end].strip(), "read_evidence refuses such spans"
        first = int(np.searchsorted(sentences[:, 1], start, side="right"))
        last = int(np.searchsorted(sentences[:, 0], end, side="left"))
        for number in range(first, last):
            a, b = sentences[number].tolist()
            shared = _visible(document[max(a, start) : min(b, end)])
            labels[number] |= (
                2 * shared >= min(_visible(document[a:b]), _visible(document[start:end])) > 0
            )
    return labels


def expect_tokens(full: np.ndarray, name: str) -> None:
    """Raise InputError unless a sentence (S,) of the document of an example has a token."""
    if not full.any():
        raise InputError(f"evidence example {name}: the document has no tokens; remove the example")


def choose_window(
    bounds: np.ndarray, labels: np.ndarray, lengths: Sequence[int], rng: np.random.Generator
) -> slice:
    """Choose the sentences of a window at a random place that contains all positives (labels (S,)).
    `bounds` (S+1,): sentence s has the tokens [bounds[s], bounds[s+1]).

    The window has at most as many tokens as one of `lengths`, drawn at random. If the positives are
    too far apart for it, the next longer of `lengths` is used; if they fit none, the whole
    document: evidence is never split. Without positives the window may be anywhere, and a single
    sentence that is longer is used whole.
    """
    document = slice(0, len(labels))
    total = int(bounds[-1] - bounds[0])
    tokens = int(rng.choice(np.asarray(lengths)))
    if total <= tokens:
        return document
    if labels.any():
        positives = np.flatnonzero(labels)
        first = int(positives[0])
        last = int(positives[-1]) + 1
        span = int(bounds[last] - bounds[first])
        tokens = min((n for n in lengths if n >= max(tokens, span)), default=total)
        if total <= tokens:
            return document
    else:
        # around a random sentence that has a token
        first = int(rng.choice(np.flatnonzero(np.diff(bounds) > 0)))
        last = first + 1
        if bounds[last] - bounds[first] >= tokens:
            return slice(first, last)
    # The window has the tokens [start, start + tokens), which contain the sentences [first, last)
    # and are inside the document; then the sentences that are whole in it.
    lowest = max(int(bounds[0]), int(bounds[last]) - tokens)
    highest = min(int(bounds[first]), int(bounds[-1]) - tokens)
    start = int(rng.integers(lowest, highest + 1))
    return slice(
        int(np.searchsorted(bounds, start, side="left")),
        int(np.searchsorted(bounds, start + tokens, side="right")) - 1,
    )


class SentenceData(RowData[Item]):
    """Evidence in the tokens of a model. A row becomes an `Item` on access: query and document in
    the model's template, and the labels of the sentences.
    """

    def __init__(self, model: Model, path: str | Path) -> None:
        super().__init__(path)
        self._maker = ItemMaker(model)

    @classmethod
    def write(
        cls,
        path: str | Path,
        model: Model,
        evidence: Iterable[Evidence],
        *,
        tokens: Sequence[int] | None = None,
        seed: int = 0,
        fingerprint: str = "",
    ) -> Self:
        """Label, tokenize and cut examples, and write them to a file. Equal arguments give an equal
        file.
        """
        counts: Counter[str] = Counter()
        make = partial(_sentence_row, ItemMaker(model), tokens, seed)
        rows = make_rows(_FEATURES, make, evidence, counts)
        write_rows(Path(path), _FEATURES, rows, fingerprint=fingerprint)
        inform(
            f"{counts['examples']} examples, {counts['tokens']} tokens; {counts['windows']} were"
            f" cut to windows; {counts['whole']} stay whole because no window holds their evidence;"
            f" {counts['unanswered']} documents have no answer"
        )
        return cls(model, path)

    def _make(self, row: dict[str, object]) -> Item:
        bounds, ends = (np.asarray(row[name], np.int64) for name in ("bounds", "ends"))
        tokens = TokenUnits(np.asarray(row["ids"], np.int32), bounds, ends)
        labels = np.asarray(row["labels"], np.float32)
        return self._maker.item(np.asarray(row["query"], np.int32), tokens, labels)


def _sentence_row(
    maker: ItemMaker,
    lengths: Sequence[int] | None,
    seed: int,
    number: int,
    example: Evidence,
    counts: Counter[str],
) -> dict[str, object]:
    query_ids = maker.encode_query(example.query)
    # the sentences that are scored: the example's own units, or the model's
    tokens = maker.read(example.document, np.array(example.units) if example.units else None)
    labels = label_sentences(example.document, tokens.spans, example.spans)
    if lengths is not None:
        window = choose_window(
            tokens.bounds, labels, lengths, np.random.default_rng((seed, number))
        )
        if window != slice(0, len(labels)):
            counts["windows"] += 1
            tokens = tokens.part(window.start, window.stop)
            labels = labels[window]
        elif len(tokens.ids) > max(lengths):
            counts["whole"] += 1  # longer than every length, kept whole for its evidence
    expect_tokens(tokens.full, example.id)  # `full`: which sentences have a token
    count = len(maker.prefix(query_ids)[0]) + len(tokens.ids)
    counts.update(examples=1, tokens=count, unanswered=not labels.any())
    return {
        "id": example.id,
        "query": query_ids,
        "ids": tokens.ids,
        "bounds": tokens.bounds,
        "ends": tokens.ends,
        "labels": labels,
        "tokens": count,
    }


def _visible(text: str) -> int:
    return len("".join(text.split()))


def write_triple_table(
    path: Path,
    data: DataSet,
    recipe: Recipe,
    guard: Decontaminator,
    prompts: Mapping[str, str],
    fingerprint: str = "",
) -> None:
    """Write the rows of one data set of a recipe. Equal arguments and files give equal rows."""
    most = recipe.data.negatives
    text = Value("large_string")
    names = [f"negative_{number + 1}" for number in range(most)]
    columns = {"query": text, "positive": text, **dict.fromkeys(names, text)}
    columns["negatives"] = Value("int64")
    if recipe.job == "rerank":
        columns = {"query": text, "docs": List(text), "labels": List(Value("float32"))}
    counts: Counter[int] = Counter()  # rows, by their number of negatives
    lead = prompts.get("document", "")  # the document prompt of an embedder

    def rows() -> Iterator[dict[str, object]]:
        for query, positive, negatives, row in _examples(data, recipe, guard, prompts):
            counts[len(negatives)] += 1
            if recipe.job == "rerank":
                yield {
                    "query": query,
                    "docs": [positive, *negatives],
                    "labels": [0.0, *[_NOT_THE_ONE] * len(negatives)],
                    "row": row,
                }
            else:
                yield {
                    **dict.fromkeys(names),
                    **{name: lead + text for name, text in zip(names, negatives, strict=False)},
                    "query": query,
                    "positive": lead + positive,
                    "negatives": len(negatives),
                    "row": row,
                }

    write_rows(
        path,
        Features({**columns, "row": Value("string")}),
        rows(),
        source=data.path,
        fingerprint=fingerprint,
    )
    if fewer := ", ".join(f"{counts[n]:,} with {n}" for n in sorted(counts) if n < most):
        notify(f"{data.path}: of {counts.total()} rows, data.negatives = {most}: {fewer}")


def trained_prompts(table: DataTable, prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of a trained embedder: the model's, but for queries the recipe's, one for
    each set with instructions.
    """
    if table.prompt is None:
        return dict(prompts)
    trained = {name: text for name, text in prompts.items() if name != "query"}
    if "{instruction}" in table.prompt:
        trained |= {
            Path(data.path).stem: table.prompt.replace("{instruction}", data.instructions[0])
            for data in table.sets
            if data.instructions
        }
    elif table.prompt:
        trained["query"] = table.prompt
    return trained


def require_negatives(sets: Mapping[str, Dataset], table: DataTable, batch: int) -> None:
    """Raise InputError if an embedder's rows have no negatives where the recipe requests some, or
    nothing can be learned.
    """
    without = {name: rows for name, rows in sets.items() if not np.any(rows["negatives"][:])}
    alone = [
        name
        for name, rows in without.items()
        if batch == 1 or all(text == rows[0]["positive"] for text in rows["positive"])
    ]
    cause = "train.batch is 1" if batch == 1 else "one document answers all queries"
    refuse_when(
        (
            table.negatives and len(without) == len(sets),
            f"no example has negatives, but data.negatives = {table.negatives}; set it to 0, or"
            f" {_NEGATIVES_FROM}",
        ),
        (
            alone,
            f"{', '.join(alone)} leaves nothing to learn: {cause}; give more documents and larger"
            f" batches, or {_NEGATIVES_FROM}",
        ),
    )


def by_negatives(sets: Mapping[str, Dataset]) -> DatasetDict:
    """Split each set of an embedder's rows by their number of negatives, as all rows of a batch
    must have the same columns.
    """
    split: dict[str, Dataset] = {}
    for name, rows in sets.items():
        counts = np.asarray(rows["negatives"][:])
        for number in np.unique(counts).tolist():
            part = rows.select(np.flatnonzero(counts == number))
            title = name if len(part) == len(rows) else f"{name} ({number} negatives)"
            columns = [column for column in rows.column_names if column.startswith("negative_")]
            split[title] = part.remove_columns(["negatives", *columns[number:]])
    return DatasetDict(split)


def _examples(
    data: DataSet, recipe: Recipe, guard: Decontaminator, prompts: Mapping[str, str]
) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield each query with its prompt, answering document, up to `data.negatives` negatives, and
    their origin.
    """
    table = recipe.data
    source = Path(data.path)
    rng = np.random.default_rng(recipe.train.seed)
    # Texts from which random negatives are drawn: of all examples, also of examples that the guard
    # leaves out because of their queries or answers.
    pool: list[str] = []
    if _random(table):
        pool = sorted(
            {text for triple in _triples(data, Decontaminator(())) for text in triple.positives}
        )
    rows = repeated = unused = 0
    for number, triple in enumerate(_triples(data, guard)):
        prompt = _prompt(triple, number, data, table, prompts) if recipe.job == "embed" else ""
        unused += bool(triple.instruction) and "{instruction}" not in (table.prompt or "")
        for positive in triple.positives:
            negatives = _negatives(triple, pool, recipe, rng, source)
            count = min(len(negatives), table.negatives)
            # each sample takes the next `count` negatives, and begins again after the last one
            repeated += len(negatives) < count * table.samples
            for sample in range(table.samples):
                if table.rows is not None and rows == table.rows:
                    return
                rows += 1
                places = range(sample * count, (sample + 1) * count)
                part = [negatives[place % len(negatives)] for place in places]
                name = f"query {triple.id!r}" if triple.id else f"example {number + 1}"
                yield (
                    prompt + triple.query,
                    positive,
                    part,
                    f"{source.name}: {name} ({triple.query[:60]!r})",
                )
    notify_when(
        (
            unused,
            f"{source}: the instructions of {unused} examples are not used, as data.prompt has no"
            " {instruction}",
        ),
        (
            repeated,
            f"{source}: the {repeated * table.samples} rows of {repeated} positives share"
            " negatives: there are fewer than data.negatives x data.samples ="
            f" {table.negatives * table.samples}",
        ),
    )


def _random(table: DataTable) -> bool:
    return table.negative_source == "random" and table.negatives > 0


def _prompt(
    triple: Triple, number: int, data: DataSet, table: DataTable, prompts: Mapping[str, str]
) -> str:
    """Return the recipe's prompt with the example's instruction, or else the prompt that
    `Embedder.encode_query` uses.
    """
    if "{instruction}" not in (table.prompt or ""):
        return prompts.get("query", "")
    instruction = triple.instruction
    if not instruction and data.instructions:
        instruction = data.instructions[number % len(data.instructions)]
    return str(table.prompt).replace("{instruction}", instruction) if instruction else ""


def _negatives(
    triple: Triple, pool: list[str], recipe: Recipe, rng: np.random.Generator, source: Path
) -> list[str]:
    """Draw distinct negatives for all samples of one answering document, fewer if there are not
    enough.
    """
    count = recipe.data.negatives * recipe.data.samples
    random = _random(recipe.data)
    others = len(pool) - len(triple.positives) if random else len(triple.negatives)
    if others <= 0 and (random or recipe.job == "rerank"):
        raise InputError(
            f"{source}: no document is a negative of {triple.query[:60]!r}; give more examples,"
            f" {_NEGATIVES_FROM}"
        )
    if not random:
        return [triple.negatives[i] for i in rng.permutation(others)[:count]]
    drawn: list[str] = []
    while len(drawn) < min(count, others):
        text = pool[int(rng.integers(len(pool)))]
        if text not in triple.positives and text not in drawn:
            drawn.append(text)
    return drawn


def _triples(data: DataSet, guard: Decontaminator) -> Iterator[Triple]:
    """Yield triples, of evidence the answering sentences (`label_sentences`) and the others of
    their document (paper E, 5.5: docs/papers.md).
    """
    if data.format is None:
        yield from guard.clean(read_triples(data.path))
        return
    dropped = 0
    for example in guard.clean(read_evidence(data.path)):
        spans = units_of(example)
        answers = label_sentences(example.document, spans, example.spans).tolist()
        texts = [example.document[start:end].strip() for start, end in spans.tolist()]
        positives = {text: None for text, yes in zip(texts, answers, strict=True) if yes and text}
        negatives = {text: None for text in texts if text and text not in positives}
        if positives and negatives:
            yield Triple(example.query, tuple(positives), tuple(negatives), example.id)
        else:
            dropped += 1
    if dropped:
        notify(
            f"{data.path}: {dropped} examples were dropped, as all or none of their sentences"
            " answer"
        )
