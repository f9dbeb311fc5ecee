"""Recipes: read strictly, shipped ones whole and as published, written so that they read back
equal.
"""

import re
import tomllib
from dataclasses import replace

import pytest

from runnel.errors import InputError
from runnel.lab.training.recipes import LoraTable, find, read, shipped, write

MINIMAL = """
job = "embed"
[[data.sets]]
path = "pairs.csv"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    return lambda text: str(path) if path.write_text(text) else ""


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_reads_and_reads_back(name, tmp_path):
    sizes = tomllib.loads(find(name).read_text()).get("sizes", {})
    for size in (None, *sizes):
        recipe = read(name, size=size)
        assert recipe.data.sets
        odd = replace(recipe, model=replace(recipe.model, name='a "b"\n\\ {instruction}\té'))
        for one in (recipe, odd) if size is None else (recipe,):
            write(one, tmp_path / "recipe.toml")
            assert read(str(tmp_path / "recipe.toml")) == one


REFUSED = {
    "unknown key": (MINIMAL + "[train]\nlerning_rate = 1", "unknown: ['lerning_rate']"),
    "unused key": (MINIMAL + "[data]\nmax_tokens = 5", "'embed' does not use data.max_tokens"),
    "unused in a set": (
        'job = "sentences"\n[[data.sets]]\npath = "a"\nformat = "evidence"',
        "does not use data.sets.format",
    ),
    "set without a path": ('job = "embed"\n[[data.sets]]\nformat = "evidence"', "'path'"),
    "in a size": (MINIMAL + "[sizes.big.train]\nbach = 1", "unknown: ['bach']"),
    "no TOML": ("job = ", "mine.toml"),
    "zero": (MINIMAL + "[train]\nbatch = 0", "train.batch is 0"),
    "negative": (MINIMAL + "[train]\nlearning_rate = -1.0", "train.learning_rate"),
    "beta of 1": (MINIMAL + "[train]\nbetas = [0.9, 1.0]", "train.betas"),
    "large seed": (MINIMAL + "[train]\nseed = 4294967296", "4294967296"),
    "zero in a list": ('job = "sentences"\n[evaluation]\ntop_k = [5, 0]', "evaluation.top_k is 0"),
    "zero in a table that may be missing": (MINIMAL + "[lora]\nr = 0", "lora.r is 0"),
    "part without an end": (
        'job = "sentences"\n[data]\nwithin = [0.5, 0.5]',
        "data.within is [0.5, 0.5]; expected two rising",
    ),
    "part beyond the end": ('job = "sentences"\n[data]\nwithin = [0.0, 1.1]', "data.within"),
    "unshared batch": (
        MINIMAL + "[search]\nlearning_rates=[1]\n[train]\nbatch=24\n[data]\nheld_out=1",
        "search.share",
    ),
    "reranker without negatives": ('job = "rerank"\n[[data.sets]]\npath = "a"', "data.negatives"),
    "floor of a linear schedule": (
        MINIMAL + "[train]\nmin_learning_rate = 1e-6",
        "train.min_learning_rate",
    ),
    "instructions without a place": (MINIMAL + 'instructions = ["find"]', "{instruction}"),
    "search without held out rows": (
        MINIMAL + "[search]\nlearning_rates = [1e-3]",
        "data.held_out",
    ),
}


CHANGES = {
    "train.epochs": "epochs",
    "=3": "--set",
    "epochs=3": "the key of --set TABLE.KEY=VALUE is 'epochs'; expected one of ",
    "train.epoch=3": "'train.epoch'; expected one of ",
    "train.epochs=many": "epochs is 'many'; expected a number",
}


@pytest.mark.parametrize("case", [*REFUSED, *CHANGES])
def test_mistakes_are_named(file, case):
    text, message = REFUSED.get(case) or (MINIMAL, CHANGES[case])
    with pytest.raises(InputError, match=re.escape(message)):
        read(file(text), changes=(case,) if case in CHANGES else ())


@pytest.mark.parametrize("table", ["", "[sizes.large.train]\nbatch = 2"])
def test_a_mistake_of_the_recipe_is_not_reported_as_one_of_a_size(file, table):
    path = file(f"{MINIMAL}[train]\nbach = 1\n{table}")
    with pytest.raises(InputError, match=re.escape(f"{path}: train") + r".*unknown: \['bach'\]"):
        read(path)


def test_changes(file):
    changes = (
        "train.learning_rate=1e-3",
        "train.epochs=2",
        "model.name=folder/of mine",
        "lora.r=4",
        "train.temperature = 0.1",
    )
    recipe = read(file(MINIMAL), changes=changes)
    assert (recipe.train.learning_rate, recipe.train.epochs, recipe.model.name) == (
        1e-3,
        2.0,
        "folder/of mine",
    )
    assert (recipe.lora, recipe.train.temperature) == (LoraTable(r=4), 0.1)
    path = file(MINIMAL + "[train]\nbatch = 8\n[sizes.big.train]\nbatch = 4\nseed = 3")
    both = read(path, size="big", changes=("train.batch=1",)).train
    assert (both.batch, both.seed) == (1, 3), "changes come after a size"
