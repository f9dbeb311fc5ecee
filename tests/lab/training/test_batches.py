"""Which rows an embedder is trained on together, and with which learning rates, against versions
written here.
"""

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from datasets import Dataset
from helpers.tiny_examples import tiny_recipe
from transformers import TrainerCallback

from runnel.lab.training import recipes, start
from runnel.lab.training.run_data import DataFiles, read_run_data
from runnel.lab.training.trainers import _without_duplicates, make_trainer

pytestmark = pytest.mark.slow


def made_trainer(folder, job, *changes):
    recipe = tiny_recipe(job, *changes)
    model = start.load_start(recipe)
    data = read_run_data(recipe, model, DataFiles(folder / "data", write=True))
    return make_trainer(model, recipe, data, folder), recipe, data


# ---- batches -------------------------------------------------------------------------------------


def texts_of(row):
    return [text for name, text in row.items() if name != "row"]


def few_documents(documents, queries, negatives):
    """Rows whose documents are drawn from a few, as the rows of a set of long documents are."""
    draw = random.Random(0)
    rows = []
    for query in range(queries):
        positive = query % documents
        others = [number for number in range(documents) if number != positive]
        row = {"query": f"q{query}", "positive": f"d{positive}", "row": f"set:{query}"}
        drawn = enumerate(draw.sample(others, negatives), start=1)
        rows.append(row | {f"negative_{place}": f"d{number}" for place, number in drawn})
    return rows


def filled_by_hand(rows, batch):
    """How many rows are in full batches if each batch takes the next rows that share no text with
    it, until it is full.
    """
    left = list(range(len(rows)))
    random.Random(1).shuffle(left)
    full = 0
    while left:
        known: set[str] = set()
        taken = []
        for number in left:
            if len(taken) < batch and not known & set(texts_of(rows[number])):
                taken.append(number)
                known |= set(texts_of(rows[number]))
        full += batch * (len(taken) == batch)
        left = [number for number in left if number not in set(taken)]
    return full


@pytest.mark.parametrize(
    ("documents", "queries", "most_twice"),
    [
        (162, 1257, 8),  # QMSum of paper A's second table
        (400, 888, 8),
        (50, 400, 64),  # a batch of 8 queries with three negatives has 32 of the documents
    ],
)
def test_a_set_of_few_documents_fills_its_batches_without_a_text_twice(
    documents, queries, most_twice
):
    """Several processes share only full batches (`drop_last`). Rows that fit into no batch give
    their place to rows that were used already, which the library says.
    """
    rows = few_documents(documents, queries, 3)
    sampler = _without_duplicates(
        Dataset.from_list(rows),
        batch_size=8,
        drop_last=True,
        generator=torch.Generator().manual_seed(0),
    )
    batches = list(sampler)
    for batch in batches:
        texts = [text for number in batch for text in texts_of(rows[number])]
        assert len(batch) == 8 and len(set(texts)) == len(texts) == 8 * 5
    assert len(batches) == queries // 8
    used = Counter(number for batch in batches for number in batch)
    assert len(used) >= filled_by_hand(rows, 8) - 8
    assert sum(used.values()) - len(used) <= most_twice


def test_a_batch_is_of_one_set_and_an_epoch_has_no_row_twice(tmp_path):
    """Paper D's batches. Of each set fewer rows than a batch has may be left out of an epoch: those
    that share a text with the last batch.
    """
    changes = ("data.negatives=2", "data.rows=24")
    trainer, recipe, data = made_trainer(tmp_path, "linear-time-embeddings", *changes)
    rows = {row["row"]: row for part in data.train.values() for row in part}
    sets = {row: name for name, part in data.train.items() for row in part["row"]}
    assert len(data.train) > 2 and len(rows) == sum(map(len, data.train.values()))
    batches = [batch["rows"] for batch in trainer.get_train_dataloader()]
    used = Counter(row for batch in batches for row in batch)
    assert used.keys() <= rows.keys() and set(used.values()) == {1}
    left_out = Counter(sets[row] for row in rows.keys() - used.keys())
    assert all(count < recipe.train.batch for count in left_out.values())
    for batch in batches:
        assert len({sets[row] for row in batch}) == 1
        assert len(batch) <= recipe.train.batch
        texts = [text for row in batch for text in set(texts_of(rows[row]))]
        assert len(set(texts)) == len(texts)
    # the sets take turns by chance, not one after another
    order = [sets[batch[0]] for batch in batches]
    assert sum(a != b for a, b in pairwise(order)) > 2 * len(data.train)


# ---- learning rates ------------------------------------------------------------------------------


def rate_by_hand(step, steps, warmup, schedule, most, least):
    """The rate of a step, from 0: it rises from 0 in a line, then falls as the schedule says."""
    if step < warmup:
        return most * step / warmup
    done = (step - warmup) / (steps - warmup)
    falls = {
        "linear": most * (1 - done),
        "cosine": least + (most - least) * (1 + math.cos(math.pi * done)) / 2,
        "constant": most,
    }
    return falls[schedule]


class Rates(TrainerCallback):
    """The rates with which the optimizer steps."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **more):
        self.seen.append({group["lr"] for group in optimizer.param_groups})


@pytest.mark.parametrize("job", ["embed", "rerank", "sentences", "generate"])
@pytest.mark.parametrize(
    ("schedule", "warmup", "steps_of_warmup"),
    [("linear", 4, 4), ("linear", 0, 0), ("cosine", 0.25, 3), ("constant", 0.1, 2)],
)
def test_rates_rise_for_the_warm_up_and_then_follow_the_schedule(
    job, schedule, warmup, steps_of_warmup, tmp_path
):
    changes = [f"train.schedule={schedule}", f"train.warmup={warmup}", "train.max_steps=11"]
    least = 1e-3 if schedule == "cosine" else 0.0
    changes += [f"train.min_learning_rate={least}", "train.batch=2", "train.learning_rate=4e-3"]
    trainer, _, _ = made_trainer(tmp_path, job, *changes)
    rates = Rates()
    trainer.add_callback(rates)
    trainer.train()
    expected = [
        rate_by_hand(step, 11, steps_of_warmup, schedule, 4e-3, least) for step in range(11)
    ]
    assert [len(one) for one in rates.seen] == [1] * 11
    assert [rate for (rate,) in rates.seen] == pytest.approx(expected)


def test_paper_d_warms_up_for_a_hundred_steps():
    table = recipes.read("linear-time-embeddings").train
    assert (table.warmup, table.schedule) == (100, "linear")
