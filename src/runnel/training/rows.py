"""Triples made into the rows that sentence-transformers trains on, in Arrow files: memory does not depend on their number.

    embed    query, positive, negative_1, ..., negative_n, row         one row for each answering document (and sample)
    rerank   query, docs (the answering one first), labels, row

`row` says where a row came from, for messages.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from runnel.errors import InputError
from runnel.text.sentences import split_sentences
from runnel.training.data import Triple, read_evidence, read_triples
from runnel.training.decontaminate import Decontaminator
from runnel.training.settings import DataSet, DataTable, Job

log = logging.getLogger("runnel")

EVIDENCE = "evidence"  # the format of examples that are made into triples of sentences
_NOT_THE_ONE = float("-inf")  # what a softmax over labels makes 0


def write_rows(path: Path, source: Path, one: DataSet, table: DataTable, job: Job, seed: int, guard: Decontaminator) -> Dataset:
    """The rows of one data set. Equal arguments and files give equal rows.

    Args:
        path: the Arrow file; it appears when it is whole.
        source: the examples.
        guard: what it tells to be of a test set is left out.

    Raises:
        InputError: there is no example, or one without the negatives that are asked for.
    """
    text = Value("large_string")
    names = [f"negative_{i + 1}" for i in range(table.negatives)] if job == "embed" else []
    columns: dict[str, Any] = {"query": text, "positive": text, **dict.fromkeys(names, text)}
    if job == "rerank":
        columns = {"query": text, "docs": List(text), "labels": List(Value("float32"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # each process of a run may write it
    count = 0
    try:
        with ArrowWriter(path=str(partial), features=Features({**columns, "row": Value("string")})) as writer:
            for query, positive, negatives, row in _examples(source, one, table, seed, guard):
                if job == "embed":
                    writer.write({"query": query, "positive": positive, **dict(zip(names, negatives, strict=True)), "row": row})
                else:
                    labels = [0.0] + [_NOT_THE_ONE] * len(negatives)
                    writer.write({"query": query, "docs": [positive, *negatives], "labels": labels, "row": row})
                count += 1
            if not count:
                raise InputError(f"{source} has no examples to train on")
            writer.finalize()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Dataset.from_file(str(path))


def _examples(
    source: Path, one: DataSet, table: DataTable, seed: int, guard: Decontaminator
) -> Iterator[tuple[str, str, list[str], str]]:
    """Query with its prompt, answering document, `table.negatives` others, and where they came from."""
    rng = np.random.default_rng(seed)
    every = _triples(source, one, Decontaminator(())) if _random(table) else iter(())
    pool = sorted({text for triple in every for text in triple.positives})
    counts: Counter[str] = Counter()
    made = 0
    for number, triple in enumerate(_triples(source, one, guard)):
        prompt = _prompt(table.prompt, one.instructions, number)
        for positive in triple.positives:
            negatives = _negatives(triple, pool, table, rng, source, counts)
            for sample in range(table.samples):
                if table.rows is not None and made == table.rows:
                    return
                made += 1
                part = negatives[sample * table.negatives : (sample + 1) * table.negatives]
                name = f"query {triple.id!r}" if triple.id else f"example {number + 1}"
                yield prompt + triple.query, positive, part, f"{source.name}: {name} ({triple.query[:60]!r})"
    if counts["repeated"]:
        log.warning(
            "%s: %d rows repeat some of their negatives, as their examples have fewer than %d",
            source, counts["repeated"], table.negatives * table.samples,
        )  # fmt: skip


def _random(table: DataTable) -> bool:
    return table.negative_source == "random" and table.negatives > 0


def _prompt(prompt: str, instructions: tuple[str, ...], number: int) -> str:
    if "{instruction}" not in prompt:
        return prompt
    return prompt.replace("{instruction}", instructions[number % len(instructions)]) if instructions else ""


def _negatives(
    triple: Triple, pool: list[str], table: DataTable, rng: np.random.Generator, source: Path, counts: Counter[str]
) -> list[str]:
    """Negatives for all samples of one answering document, none twice if there are enough."""
    wanted = table.negatives * table.samples
    if not wanted:
        return []
    if _random(table):
        if len(pool) <= len(triple.positives):
            raise InputError(f"{source}: no other documents to draw random negatives from; give more examples")
        drawn: list[str] = []
        while len(drawn) < wanted:
            text = pool[int(rng.integers(len(pool)))]
            if text not in triple.positives and (text not in drawn or len(pool) - len(triple.positives) <= len(drawn)):
                drawn.append(text)
        return drawn
    if not triple.negatives:
        raise InputError(
            f"{source}: the query {triple.query[:60]!r} has no negatives, but data.negatives = {table.negatives}; find some with "
            "`runnel mine`, take documents of other queries with --set data.negative_source=random, or set it to 0"
        )
    order = rng.permutation(len(triple.negatives))
    counts["repeated"] += table.samples * (len(order) < wanted)
    return [triple.negatives[i] for i in np.resize(order, wanted)]


def _triples(source: Path, one: DataSet, guard: Decontaminator) -> Iterator[Triple]:
    if one.format != EVIDENCE:
        texts = {
            name: source.parent / path if path else None for name, path in (("corpus", one.corpus), ("queries", one.queries))
        }
        triples = read_triples(source, one.format, **texts)  # type: ignore[arg-type]  # its reader checks the name of the format
        return guard.clean(triples)
    return _sentences(source, guard)


def _sentences(source: Path, guard: Decontaminator) -> Iterator[Triple]:
    """Evidence as triples: sentences that share a character with evidence against the others of their document (paper E, 5.5)."""
    dropped = 0
    for example in guard.clean(read_evidence(source)):
        spans = split_sentences(example.document).tolist()
        answers = [any(a < end and start < b for start, end in example.spans) for a, b in spans]
        texts = [example.document[a:b].strip() for a, b in spans]
        positives = tuple(dict.fromkeys(t for t, yes in zip(texts, answers, strict=True) if yes and t))
        others = tuple(dict.fromkeys(t for t, yes in zip(texts, answers, strict=True) if t and not yes and t not in positives))
        if positives and others:
            yield Triple(example.query, positives, others, example.id)
        else:
            dropped += 1
    if dropped:
        log.warning("%s: %d examples were left out, as all or none of their sentences answer", source, dropped)
