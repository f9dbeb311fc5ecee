"""Triples as rows for sentence-transformers, in Arrow files: memory does not depend on their number.

    embed    query, positive, negative_1, ..., negative_n, negatives, row      one row for each answering document (and sample)
    rerank   query, docs (the answering document first), labels, row

`negatives` is the number of those that a row has, the other columns are null. `row` names the origin of a row, for messages.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, List, Value

from runnel.errors import InputError
from runnel.lab.training.data import Triple, read_evidence, read_triples
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.rows import write_rows
from runnel.lab.training.sentence_table import label_sentences, units_of
from runnel.lab.training.settings import DataSet, DataTable, Job

log = logging.getLogger("runnel")

_NEGATIVES_FROM = "find negatives with `runnel lab mine`, or use documents of other queries: --set data.negative_source=random"
_NOT_THE_ONE = float("-inf")  # 0 after a softmax over labels


def write_triple_table(
    path: Path,
    source: Path,
    one: DataSet,
    table: DataTable,
    job: Job,
    seed: int,
    guard: Decontaminator,
    prompts: Mapping[str, str],
) -> Dataset:
    """Write the rows of one data set. Equal arguments and files give equal rows."""
    text = Value("large_string")
    names = [f"negative_{i + 1}" for i in range(table.negatives)] if job == "embed" else []
    columns: dict[str, Any] = {"query": text, "positive": text, **dict.fromkeys(names, text), "negatives": Value("int64")}
    if job == "rerank":
        columns = {"query": text, "docs": List(text), "labels": List(Value("float32"))}
    counts: Counter[int] = Counter()  # rows, by their number of negatives
    lead = prompts.get("document", "") if job == "embed" else ""
    features = Features({**columns, "row": Value("string")})

    def rows() -> Iterator[dict[str, Any]]:
        for query, positive, negatives, row in _examples(source, one, table, job, seed, guard, prompts):
            counts[len(negatives)] += 1
            if job == "embed":
                texts = {name: lead + text for name, text in zip(names, negatives, strict=False)}
                fixed = {"query": query, "positive": lead + positive, "negatives": len(negatives), "row": row}
                yield dict.fromkeys(names) | texts | fixed
            else:
                labels = [0.0] + [_NOT_THE_ONE] * len(negatives)
                yield {"query": query, "docs": [positive, *negatives], "labels": labels, "row": row}

    write_rows(path, features, rows(), source)
    if fewer := [f"{counts[n]:,} with {n}" for n in sorted(counts) if n < table.negatives]:
        log.warning("%s: of %d rows, data.negatives = %d: %s", source, counts.total(), table.negatives, ", ".join(fewer))
    return Dataset.from_file(str(path))


def trained_prompts(table: DataTable, prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of a trained embedder: the model's, but for queries the recipe's, one for each set with instructions."""
    if table.prompt is None:
        return dict(prompts)
    kept = {name: text for name, text in prompts.items() if name != "query"}
    if "{instruction}" not in table.prompt:
        return kept | ({"query": table.prompt} if table.prompt else {})
    sets = (one for one in table.sets if one.instructions)
    return kept | {Path(one.path).stem: table.prompt.replace("{instruction}", one.instructions[0]) for one in sets}


def require_negatives(sets: Mapping[str, Dataset], table: DataTable, batch: int) -> None:
    """Raise InputError if an embedder's rows have no negatives where the recipe requests some, or nothing can be learned."""
    without = {name: rows for name, rows in sets.items() if not np.any(rows["negatives"][:])}
    if table.negatives and len(without) == len(sets):
        what = f"no example has negatives, but data.negatives = {table.negatives}; set it to 0, or {_NEGATIVES_FROM}"
    elif alone := [
        name for name, rows in without.items() if batch == 1 or all(text == rows[0]["positive"] for text in rows["positive"])
    ]:
        cause = "train.batch is 1" if batch == 1 else "one document answers all queries"
        what = f"{alone[0]} leaves nothing to learn: {cause}; give more documents and larger batches, or {_NEGATIVES_FROM}"
    else:
        return
    raise InputError(what)


def by_negatives(sets: Mapping[str, Dataset]) -> DatasetDict:
    """Split each set of an embedder's rows by their number of negatives, as all rows of a batch must have the same columns."""
    split: dict[str, Dataset] = {}
    for name, rows in sets.items():
        counts = np.asarray(rows["negatives"][:])
        for number in np.unique(counts).tolist():
            part = rows if (counts == number).all() else rows.select(np.flatnonzero(counts == number))
            empty = [column for column in part.column_names if column.startswith("negative_")][number:]
            split[name if part is rows else f"{name} ({number} negatives)"] = part.remove_columns(["negatives", *empty])
    return DatasetDict(split)


def _examples(
    source: Path, one: DataSet, table: DataTable, job: Job, seed: int, guard: Decontaminator, prompts: Mapping[str, str]
) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield each query with its prompt, answering document, up to `table.negatives` negatives, and their origin."""
    rng = np.random.default_rng(seed)
    every = _triples(source, one, Decontaminator(())) if _random(table) else iter(())
    pool = sorted({text for triple in every for text in triple.positives})
    made = repeated = unused = 0
    for number, triple in enumerate(_triples(source, one, guard)):
        prompt = _prompt(triple, number, one, table, prompts) if job == "embed" else ""
        unused += bool(triple.instruction) and "{instruction}" not in (table.prompt or "")
        for positive in triple.positives:
            negatives = _negatives(triple, pool, table, job, rng, source)
            count = min(len(negatives), table.negatives)
            repeated += len(negatives) < count * table.samples
            for sample in range(table.samples):
                if table.rows is not None and made == table.rows:
                    return
                made += 1
                part = [negatives[i % len(negatives)] for i in range(sample * count, (sample + 1) * count)]
                name = f"query {triple.id!r}" if triple.id else f"example {number + 1}"
                yield prompt + triple.query, positive, part, f"{source.name}: {name} ({triple.query[:60]!r})"
    if unused:
        log.warning("%s: the instructions of %d examples are not used, as data.prompt has no {instruction}", source, unused)
    if repeated:
        log.warning(
            "%s: the %d rows of %d positives share negatives: there are fewer than data.negatives x data.samples = %d",
            source, repeated * table.samples, repeated, table.negatives * table.samples,
        )  # fmt: skip


def _random(table: DataTable) -> bool:
    return table.negative_source == "random" and table.negatives > 0


def _prompt(triple: Triple, number: int, one: DataSet, table: DataTable, prompts: Mapping[str, str]) -> str:
    """Return the recipe's prompt with the example's instruction, or else the prompt that `Embedder.encode_query` uses."""
    if "{instruction}" not in (table.prompt or ""):
        return prompts.get("query", "")
    instruction = triple.instruction or (one.instructions[number % len(one.instructions)] if one.instructions else "")
    return str(table.prompt).replace("{instruction}", instruction) if instruction else ""


def _negatives(triple: Triple, pool: list[str], table: DataTable, job: Job, rng: np.random.Generator, source: Path) -> list[str]:
    """Draw distinct negatives for all samples of one answering document, fewer if there are not enough."""
    wanted = table.negatives * table.samples
    lacking = len(pool) <= len(triple.positives) if _random(table) else job == "rerank" and not triple.negatives
    if lacking:
        raise InputError(f"{source}: no document is a negative of {triple.query[:60]!r}; give more examples, {_NEGATIVES_FROM}")
    if _random(table):
        drawn: list[str] = []
        while len(drawn) < min(wanted, len(pool) - len(triple.positives)):
            text = pool[int(rng.integers(len(pool)))]
            if text not in triple.positives and text not in drawn:
                drawn.append(text)
        return drawn
    return [triple.negatives[i] for i in rng.permutation(len(triple.negatives))[:wanted]]


def _triples(source: Path, one: DataSet, guard: Decontaminator) -> Iterator[Triple]:
    return _sentences(source, guard) if one.format else guard.clean(read_triples(source))


def _sentences(source: Path, guard: Decontaminator) -> Iterator[Triple]:
    """Yield evidence as triples: answering sentences (`label_sentences`) and the others of their document (paper E, 5.5)."""
    dropped = 0
    for example in guard.clean(read_evidence(source)):
        spans = units_of(example)
        answers = label_sentences(example.document, spans, example.spans).tolist()
        texts = [example.document[a:b].strip() for a, b in spans.tolist()]
        positives = tuple(dict.fromkeys(t for t, yes in zip(texts, answers, strict=True) if yes and t))
        others = tuple(dict.fromkeys(t for t, yes in zip(texts, answers, strict=True) if t and not yes and t not in positives))
        if positives and others:
            yield Triple(example.query, positives, others, example.id)
        else:
            dropped += 1
    if dropped:
        log.warning("%s: %d examples were dropped, as all or none of their sentences answer", source, dropped)
