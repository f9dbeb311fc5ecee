"""Prepare, train and measure the pilots of a recurrent sentence retriever.

python -m tools.train_memory prepare DATA      token ids, into runs/memory (DATA: train_pocket)
python -m tools.train_memory asked QUESTIONS FOLDER NAME  the same of documents in a folder and
                                               questions with patterns, as runs/memory/NAME.npz
python -m tools.train_memory KIND TOKENS RATE  train one of `train.make`; run again, it resumes
python -m tools.train_memory measure KIND NAMES [MOST]  ranks of the sentences of NAME.npz (held,
                                               forms, or one asked about; with commas several),
                                               whole and alone, and what whole brings; of documents
                                               of at most MOST tokens.
                                               Before its training a KIND is what it begins with. In
                                               brackets are 95 % intervals: documents are drawn.
python -m tools.train_memory export FOLDER WORDS FILE ...  the model folder of pilot (b), beside
                                               pocket's, with the mean of the weights in files that
                                               its training wrote (keep a copy of each: the run has
                                               one file); WORDS: the weight of BM25 beside
                                               10 times the cosine

All of it runs on the GPU that torch sees, else on the CPU. It has not run on a real GPU.
"""

import logging
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from runnel.ops.backend import has_native_bf16
from tools.train_memory.continued import Continued, taught
from tools.train_memory.documents import (
    NEVER_TRAINED,
    evidence_documents,
    load,
    pattern_documents,
    save,
)
from tools.train_memory.export import export
from tools.train_memory.measure import gain, ranks, scored_ranks, summary
from tools.train_memory.models import Replaced
from tools.train_memory.train import Training, make
from tools.train_pocket.data import EVIDENCE

RUNS = Path("runs/memory")
_TRAIN, _HELD, _FORMS = 450_000, 25_000, 400_000  # the most tokens of a set
_TAUGHT = 500  # documents that pocket scores


def prepare(data: Path) -> None:
    """Write the documents to train on, those held back, those of forms that are never trained on,
    and those with pocket's scores.
    """
    RUNS.mkdir(parents=True, exist_ok=True)
    for file, names, measure, most in (
        ("train", EVIDENCE, False, _TRAIN),
        ("held", EVIDENCE, True, _HELD),
        ("forms", NEVER_TRAINED, False, _FORMS),
    ):
        documents = [
            document
            for name in names
            for document in evidence_documents(data, name, measure=measure, most=most)
        ]
        save(documents, RUNS / f"{file}.npz")
    save(list(taught(data, _TAUGHT)), RUNS / "taught.npz")


def train(kind: str, tokens: str, rate: str) -> None:
    """Train until `tokens` were read; `rate`: the highest learning rate."""
    bf16 = has_native_bf16()
    training = Training(kind, RUNS / kind, int(float(tokens)), float(rate), bf16=bf16)
    training.run(load(RUNS / ("taught.npz" if kind == "continued" else "train.npz")))


def restored(model: nn.Module, kind: str) -> bool:
    """Give a model the weights that its training wrote; return whether there are some."""
    written = RUNS / kind / "weights.safetensors"
    if written.exists():
        weights = dict(model.named_parameters())
        for weight, value in load_file(written).items():
            weights[weight].data.copy_(value)
    return written.exists()


def measure(kind: str, names: str, most: str = "inf") -> None:
    """Print first, first 5, first 10 and MRR of the questions about the documents of files, read
    whole and each sentence alone, and the differences, with intervals. `names`: with commas.
    """
    model = make(kind)
    if not restored(model, kind) and isinstance(model, Continued):
        model.later = 0  # pocket-mamba2 was trained to be scored at a sentence's end
    documents = [
        document
        for name in names.split(",")
        for document in load(RUNS / f"{name}.npz")
        if len(document.ids) <= float(most)
    ]
    if not any(document.questions for document in documents):
        sys.exit(
            f"expected questions about documents of at most {most} tokens in {names}, got none"
        )
    ways: dict[str, list[list[int]]] = {}
    for reading in ("whole", "alone"):
        if isinstance(model, Continued):
            found = list(scored_ranks(model, documents, whole=reading == "whole"))
        else:
            found = list(ranks(model, documents, whole=reading == "whole"))
        about = [document for document, _ in found]
        for way in found[0][1]:
            of_way = [by_way[way] for _, by_way in found]
            ways.setdefault(way, []).append(of_way)
            print(reading, way, summary(about, of_way))
    for way, (whole, alone) in ways.items():
        print("whole less alone", way, gain(about, whole, alone))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    match sys.argv[1:]:
        case ["prepare", data]:
            prepare(Path(data))
        case ["asked", questions, folder, name]:
            save(list(pattern_documents(Path(questions), Path(folder))), RUNS / f"{name}.npz")
        case ["measure", kind, names, *most]:
            measure(kind, names, *most)
        case ["export", folder, words, *files] if files:
            trained = Replaced()
            read = [load_file(file) for file in files]
            weights = dict(trained.named_parameters())
            for name in read[0]:
                weights[name].data.copy_(torch.stack([one[name] for one in read]).mean(0))
            export(trained.eval(), Path(folder), float(words))
        case [kind, tokens, rate]:
            train(kind, tokens, rate)
        case _:
            sys.exit(__doc__)
