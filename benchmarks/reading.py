"""The time and the work of reading a collection of documents: `python -m benchmarks read`.

A document is one text, or pieces of one: its sentences, its chunks, or the candidates of a query.
Texts of similar length go into one batch, and pieces only with pieces of the same document (paper
E, section 5.6). Of the batch sizes the fastest is shown (paper A, section 4.3). Token ids are
random; tokenization is not timed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.kept import Sections
from benchmarks.measure import SLOW_S, Progress, failure, spread
from benchmarks.padding import COUNTS, padding
from benchmarks.processes import Worker
from benchmarks.shapes import describe_subject
from benchmarks.speed import Report, Settings, check, start
from runnel.errors import InputError
from runnel.lab.training.corpus import read_corpus
from runnel.models.folder import BUILT_IN
from runnel.text.sentences import split_sentences
from runnel.text.tokenizers import read_tokenizer

Documents = tuple[tuple[int, ...], ...]  # the lengths in tokens of each document's pieces


def read_documents(given: str) -> Documents:
    """Parse NxT (N pieces of T tokens, one document), or read a file: a line holds the lengths in
    tokens of a document's pieces.

    Raises:
        InputError: no such file, a line has something else, or there is none.
    """
    if wanted := re.fullmatch(r"(\d+)x(\d+)", given):
        documents = [[int(wanted[2])] * int(wanted[1])]
    elif Path(given).is_file():
        lines = Path(given).read_text(encoding="utf-8").splitlines()
        documents = [
            list(_line(given, number, line))
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
    else:
        raise InputError(
            f"{given}: no such file; give a file of lengths in tokens, or texts and tokens such as"
            " 100x512"
        )
    if not documents or not all(map(all, documents)) or not all(documents):
        raise InputError(
            f"{given} holds no lengths, or one of 0; write one whole number from 1 for each text"
        )
    return tuple(map(tuple, documents))


def _line(file: str, number: int, line: str) -> Iterator[int]:
    for word in line.split():
        if not word.isdecimal():
            raise InputError(
                f"{file}, line {number}: expected lengths in tokens, got {word[:40]!r}"
            )
        yield int(word)


def digest(documents: Documents) -> str:
    """Return a hex digest of the lengths, which tells other documents apart."""
    return hashlib.sha256(repr(documents).encode()).hexdigest()[:16]


def cut(documents: Documents, tokens: int | None) -> Documents:
    """Return the documents with every piece cut to `tokens`; None: whole."""
    return (
        documents
        if tokens is None
        else tuple(tuple(min(tokens, piece) for piece in document) for document in documents)
    )


def batches(documents: Documents, batch: int) -> list[list[int]]:
    """Return batches of texts of similar length; pieces of different documents are not mixed."""
    return [
        group[i : i + batch] for group in _groups(documents) for i in range(0, len(group), batch)
    ]


def _groups(documents: Documents) -> Iterator[list[int]]:
    """Yield what may share a batch, sorted by length: the documents that are one text, then the
    pieces of each other one.
    """
    if single := sorted(document[0] for document in documents if len(document) == 1):
        yield single
    yield from (sorted(document) for document in documents if len(document) > 1)


def work(model: str, documents: Documents, batch: int) -> dict[str, Any]:
    """Count parameters, tokens and operations by each of `COUNTS`, packed and padded to the longest
    text of each batch.
    """
    backbone = describe_subject(model)
    total = Counter[str]()
    for group in _groups(documents):
        total.update(padding(group, batch, backbone))
    flops = {
        name: {"packed": total[f"{prefix}packed_flops"], "padded": total[f"{prefix}padded_flops"]}
        for prefix, name in COUNTS.items()
        if f"{prefix}packed_flops" in total
    }
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    return {
        "model": model,
        "batch": batch,
        "tokens": total["tokens"],
        "parameters": parameters,
        "flops": flops,
    }


def measure(
    settings: Settings,
    model: str,
    documents: Documents,
    tokens: int | None,
    sizes: Sequence[int],
    progress: Progress,
) -> Sections:
    """Check the systems of a model, then time all documents, cut to `tokens`, with every batch size
    in interleaved rounds.

    Returns:
        "reading": a row for each system, dtype and batch size, with "best" where it is the fastest
        of its system; "checks" and "skipped" as in `Report`.
    """
    report = Report()
    shown = cut(documents, tokens)
    facts = {
        "documents": len(shown),
        "texts": sum(map(len, shown)),
        "tokens": sum(map(sum, shown)),
        "cut": tokens,
    }
    facts["longest"] = longest = max(map(max, shown))
    limit = describe_subject(model).longest_text
    series = list[tuple[Worker, list[dict[str, Any]]]]()
    with ExitStack() as stack:
        workers = start(settings, model, stack, report, progress)
        for worker, found in zip(workers, check(workers, report, progress).values(), strict=True):
            system = {
                "model": model,
                "system": worker.first["title"],
                "dtype": worker.spec.dtype,
            } | facts
            state = {
                "outcome": "ok" if found.passed else "wrong",
                "note": found.note,
                "peak_bytes": None,
            }
            if (
                worker.spec.system == "runnel"
                and found.passed
                and limit is not None
                and longest > limit
            ):
                state |= {"outcome": "left out", "note": f"it reads at most {limit:,} tokens"}
            series.append(
                (worker, [system | {"batch": batch} | state | {"seconds": []} for batch in sizes])
            )
        for turn in range(settings.rounds):
            for worker, rows in series:
                _round(worker, rows, shown, settings, turn, progress)
    for _, rows in series:
        for row in rows:
            row["seconds"] = spread(row["seconds"]) if row["outcome"] == "ok" else None
        best = min(
            (row for row in rows if row["seconds"]),
            key=lambda row: row["seconds"]["median"],
            default=None,
        )
        for row in rows:
            row["best"] = row is best
    found_rows = [row for _, rows in series for row in rows]
    return {"reading": found_rows} | {
        key: value for key, value in report.to_dict().items() if key != "points"
    }


def _round(
    worker: Worker,
    rows: list[dict[str, Any]],
    documents: Documents,
    settings: Settings,
    turn: int,
    progress: Progress,
) -> None:
    """Time every batch size of a system once. A batch larger than one that ran out of memory is not
    tried.
    """
    segment = settings.segment if worker.spec.system == "runnel" else None
    full = False
    for row in rows:
        if row["outcome"] != "ok" or (row["seconds"] and row["seconds"][0] > SLOW_S / 3):
            continue
        if full:
            row["outcome"], row["note"] = "out of memory", "a smaller batch was"
            continue
        answer = worker.ask("read", batches=batches(documents, row["batch"]), segment=segment)
        if "seconds" in answer:
            row["seconds"].append(answer["seconds"])
            row["peak_bytes"] = max(row["peak_bytes"] or 0, answer["peak_bytes"])
            name = (
                f"{row['model']}, round {turn + 1} of {settings.rounds}: {row['system']} in"
                f" {row['dtype']}"
            )
            progress(
                f"{name}, {row['texts']:,} texts of at most {row['longest']:,} tokens in batches "
                f"of {row['batch']}: {answer['seconds']:,.2f} s"
            )
        elif not row["seconds"]:  # else it was measured, and the process has died since
            row["outcome"], row["note"] = failure(answer)
            full = row["outcome"] == "out of memory"


def lengths_of(model: str, corpus: Path, pieces: str | None) -> Iterator[list[int]]:
    """Yield the lengths in tokens of each document's pieces, special tokens left out; empty for a
    document without text.

    Args:
        pieces: "sentences", or the number of words of a chunk; None: documents are whole.

    Raises:
        InputError: another `pieces`, or as `read_corpus`.
    """
    if pieces not in (None, "sentences") and not (pieces.isdecimal() and int(pieces)):
        raise InputError(f"--pieces takes sentences, or a number of words from 1, got {pieces!r}")
    tokenizer = read_tokenizer(BUILT_IN.get(model, Path(model)))
    for document in read_corpus(corpus):
        texts = [document.text]
        if pieces == "sentences":
            texts = [document.text[start:end] for start, end in split_sentences(document.text)]
        elif pieces is not None:
            words = document.text.split()
            size = int(pieces)
            texts = [" ".join(words[i : i + size]) for i in range(0, len(words), size)]
        yield [len(encoded.ids) for encoded in tokenizer.encode_batch(texts) if len(encoded.ids)]
