"""The steps: read the documents once, tune layers for sentences, fit the heads on what these read,
print every table.

`OUT` holds the documents as the published encoder reads them, `OUT/sentences` as the tuned one
does, and `OUT/model-DIGEST` as the exported model does.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.page_text import table
from runnel.models.folder import load_model
from runnel.models.pocket.lexical import word_table
from runnel.models.recurrent.heads import HeldHead
from tools.train_pocket import encode as reading
from tools.train_pocket import fit as fitting
from tools.train_pocket import long_documents, relevance, whole_index
from tools.train_pocket import measure as measuring
from tools.train_pocket import tune as tuning
from tools.train_pocket.evaluate import MEASURED
from tools.train_pocket.examples import Example, load_examples, load_table
from tools.train_pocket.export import write_encoder

log = logging.getLogger(__name__)
_ASKED_ELSEWHERE = 4  # one question in so many is also asked to another document


def encode(data: Path, out: Path, folder: Path) -> None:
    """Read the held-back documents, the training documents, and the documents of the retrieval
    sets.
    """
    write_encoder(folder, out)
    reading.encode(data, out, measure=True)
    reading.encode(data, out, measure=False)
    relevance.encode_sets(data, out)


def tune(data: Path, out: Path, folder: Path, minutes: float) -> None:
    """Write `out`/tuned, the encoder tuned on six in ten of the training documents."""
    read = load_examples(data, out, load_table(data, out), measure=False)
    examples = [one for one in read if fitting.tuned_on(one.document)]
    tuning.tune(data, out, folder, examples, minutes)


def _training(
    data: Path, out: Path
) -> tuple[list[Example], list[Example], list[Example], list[Example]]:
    """Load examples and strangers to train the heads on, and others for the calibration."""
    table = load_table(data, out)
    examples = [
        one
        for one in load_examples(data, out, table, measure=False)
        if not fitting.tuned_on(one.document)
    ]
    strangers = measuring.asked_elsewhere(
        data, out, table, examples[::_ASKED_ELSEWHERE], measure=False
    )

    def split(found: Sequence[Example]) -> tuple[list[Example], list[Example]]:
        kept = [fitting.aside(one.document) for one in found]
        pairs = list(zip(found, kept, strict=True))
        return [one for one, k in pairs if not k], [one for one, k in pairs if k]

    trained, aside = split(examples)
    strange, strange_aside = split(strangers)
    return trained, strange, aside, strange_aside


def _read_tuned(data: Path, out: Path) -> Path:
    """Read the documents that fit and measure the heads with the tuned encoder;
    return the folder.
    """
    if not (out / "tuned").is_dir():
        raise FileNotFoundError(f"{out / 'tuned'} is missing; run the step tune")
    sentences = out / "sentences"
    write_encoder(out / "tuned", sentences)
    load_table(data, out)
    shutil.copy(out / "idf.npy", sentences)
    reading.encode(data, sentences, measure=True)
    reading.encode(
        data, sentences, measure=False, wanted=lambda document: not fitting.tuned_on(document)
    )
    return sentences


def fit(data: Path, out: Path, seeds: int, without: tuple[str, ...]) -> None:
    """Fit heads with several seeds, log their recall, and keep them as one head, with the
    reranker's weights.

    Args:
        without: sets whose questions are left out; nothing is kept then.
    """
    sentences = _read_tuned(data, out)
    trained, strange, aside, strange_aside = _training(data, sentences)
    trained = [one for one in trained if one.set not in without]
    strange = [one for one in strange if one.set not in without]
    held = load_examples(data, sentences, load_table(data, sentences), measure=True)
    log.info(
        "%d questions trained on, %d to calibrate, %d held back",
        len(trained),
        len(aside),
        len(held),
    )
    heads = [fitting.train(trained, strange, seed=seed) for seed in range(seeds)]
    means = [_recall(head, held, f"seed {seed}") for seed, head in enumerate(heads)]
    log.info(
        "%d seeds: recall@10 %.4f, standard deviation %.4f", seeds, np.mean(means), np.std(means)
    )
    head = fitting.merged(heads)
    fitting.calibrate_by_set(head, aside, strange_aside)
    note: dict[str, object] = {
        "questions": len(trained),
        "seeds": seeds,
        "recall@10": _recall(head, held, "together"),
    }
    if not without:
        fitting.save(head, out, note)
        relevance.fit_relevance(data, out)


def _recall(head: HeldHead, held: Sequence[Example], name: str) -> float:
    """Return and log the mean recall@10 over the held-back sets."""
    values = measuring.recalls(held, [score.numpy() for score in fitting.scores(head, held)], 10)
    sets = measuring.by_set(held, values)
    mean = float(np.mean(list(sets.values())))
    log.info(
        "%s: recall@10 %.4f; %s", name, mean, ", ".join(f"{k} {v:.3f}" for k, v in sets.items())
    )
    return mean


def measure(data: Path, out: Path, folder: Path, model: Path) -> None:
    """Read the missing documents, and print the tables of the lab book.

    Args:
        folder: of the encoder as it was published.
        model: the exported folder, which is measured.
    """
    write_encoder(folder, out)
    shipped = _read_shipped(out, model)
    loaded = load_model(model)
    for place in (out, shipped):
        reading.encode(data, place, measure=True)
    relevance.encode_sets(data, out)
    head = loaded.heads["sentences"]
    rerank = loaded.heads["rerank"]
    assert (
        isinstance(head, HeldHead) and isinstance(rerank, HeldHead) and loaded.features is not None
    )
    table = word_table(loaded.tokenizer.vocabulary, loaded.features.idf.numpy())
    held, tuned = (load_examples(data, place, table, measure=True) for place in (out, shipped))
    documents = measuring.documents_of(data, out, held)
    rows = measuring.sentence_rows(data, out, held, tuned, documents, head)
    _say("Sentences", measuring.sentence_tables(held, rows))
    _say(
        "Sentences by length of the document and position of the evidence",
        measuring.context_table(held, documents, rows),
    )
    strangers = measuring.asked_elsewhere(data, shipped, table, tuned, measure=True)
    _say("Calibration", measuring.calibration_table(head, tuned, strangers))
    weights = rerank.linear.weight[0].detach().double().numpy()
    lists = {
        name: relevance.rows_of(relevance.measured(data, out, name, table), weights)
        for name in MEASURED
    }
    _say("Reranking BM25's best documents, nDCG@10", _ndcg_table(lists, "BM25"))
    _say(
        "Ranking long documents, nDCG@10",
        _ndcg_table(long_documents.measured(data, out), long_documents.BEGINNING),
    )
    found = whole_index.measured(data, shipped, model)
    _say("Searching whole collections, nDCG@10", _ndcg_table(found, "BM25"))


def _read_shipped(out: Path, model: Path) -> Path:
    """Return the folder, named by the weights, for the documents that the exported model reads."""
    digest = hashlib.blake2b((model / "model.safetensors").read_bytes(), digest_size=8).hexdigest()
    target = out / f"model-{digest}"
    if not (target / "encoder").exists():
        target.mkdir(exist_ok=True)
        (target / "encoder").symlink_to(model.resolve(), target_is_directory=True)
    return target


def _ndcg_table(columns: Mapping[str, Mapping[str, NDArray[np.float64]]], baseline: str) -> str:
    """Format the mean of each set and way, and the difference to the way `baseline` with its
    interval.
    """
    ways = list(next(iter(columns.values())))
    lines = []
    sets = [name for name, rows in columns.items() for _ in rows[baseline]]
    base = np.concatenate([rows[baseline] for rows in columns.values()])
    for way in ways:
        means = [float(rows[way].mean()) for rows in columns.values()]
        gain = measuring.difference(
            sets, np.concatenate([rows[way] for rows in columns.values()]) - base
        )
        lines.append([way, *(f"{m:.3f}" for m in [*means, float(np.mean(means))]), gain])
    return table(["way", *columns, "mean", f"against {baseline}"], lines)


def _say(title: str, text: str) -> None:
    sys.stdout.write(f"## {title}\n\n{text}\n\n")
    sys.stdout.flush()
