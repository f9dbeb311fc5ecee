"""What runs of recipes refuse."""

import os

import pytest
from helpers.tiny_examples import tiny_recipe

from runnel.errors import InputError, StoreBusy
from runnel.training import recipes
from runnel.training.progress import Recorder
from runnel.training.run import LOCK, train

pytestmark = pytest.mark.usefixtures("one_thread", "bare")


def test_other_settings_in_the_same_folder(tmp_path):
    train(tiny_recipe("embed", "train.max_steps=1"), tmp_path)
    with pytest.raises(InputError, match=r"different settings \(train.seed: 0, 5: stored, given\)"):
        train(tiny_recipe("embed", "train.max_steps=1", "train.seed=5"), tmp_path)


@pytest.mark.parametrize("job", ["sentences", "generate"])
def test_held_out_data_that_leave_none_to_train_on(job, tmp_path):
    with pytest.raises(InputError, match=r"data\.held_out = 9999"):
        train(tiny_recipe(job, "data.held_out=9999"), tmp_path)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=str(tmp_path)):
        train(tiny_recipe("embed"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_second_trainer_in_a_run_folder(tmp_path, monkeypatch):
    """It is refused, and the first one is not disturbed; a lock file whose process has died is in nobody's way."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).write_text("process 1\n")
    once, refused = Recorder.on_step_end, []

    def train_again(self, args, state, control, **more):
        once(self, args, state, control, **more)
        with pytest.raises(StoreBusy, match=rf"process {os.getpid()}") as caught:
            train(recipe, tmp_path / "run")
        refused.append(caught)

    monkeypatch.setattr(Recorder, "on_step_end", train_again)
    recipe = tiny_recipe("embed", "train.max_steps=1")
    assert train(recipe, tmp_path / "run").steps == len(refused) == 1
    assert not (tmp_path / "run" / LOCK).exists()


def test_missing_data(tmp_path):
    recipe = recipes.read("pairs")
    with pytest.raises(InputError, match="--data"):
        train(recipe, tmp_path / "run")
    with pytest.raises(InputError, match=r"none\.csv"):
        train(recipe, tmp_path / "run", data=tmp_path / "none.csv")
    assert not (tmp_path / "run").exists()
