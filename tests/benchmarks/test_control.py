"""The experiment over several families: equal sizes, the same recipe, figures over seeds, work
resumed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.children import GIVE_UP_S, PATHS, wait_for
from helpers.files import write_files

from benchmarks import control
from benchmarks.control import read_experiment, run_experiment
from benchmarks.control_page import page_text, plot
from runnel.errors import InputError

pytestmark = pytest.mark.slow

SHIPPED = Path(control.__file__).with_name("control.toml")
FILE = """
seeds = [0, 1]
tasks = ["task"]
metrics = ["nDCG@10", "MRR@10"]
parameters = 22_000
hidden_size = 32
[families.mamba2]
head_size = 16
state_size = 8
[families.llama]
num_attention_heads = 2
num_key_value_heads = 2
intermediate_size = 72
[recipe]
job = "embed"
[[recipe.data.sets]]
path = "pairs.csv"
[recipe.train]
batch = 4
max_steps = 3
learning_rate = 1e-2
"""


def write_experiment(place, text=FILE):
    words = [
        "river",
        "heron",
        "frog",
        "sand",
        "tide",
        "reed",
        "stone",
        "moss",
        "crab",
        "wave",
        "fish",
        "gull",
    ]
    pairs = [
        (f"the {a} and the {b}", f"a text about {a}, then one about {b}")
        for a in words
        for b in words
        if a < b
    ]
    write_files(
        place,
        {
            "data/task/queries.jsonl": [{"_id": f"{n}", "text": pairs[n][0]} for n in range(10)],
            "data/task/corpus.jsonl": [{"_id": f"{n}", "text": pairs[n][1]} for n in range(10)],
            "data/task/qrels/test.tsv": [
                "query-id\tcorpus-id\tscore",
                *(f"{n}\t{n}\t1" for n in range(10)),
            ],
            "data/pairs.csv": ["query,positive", *(f'{q},"{d}"' for q, d in pairs[10:])],
            "experiment.toml": text,
        },
    )
    return place


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = write_experiment(tmp_path_factory.mktemp("finished"))
    result, said = run(place)
    assert json.loads((place / "to" / "control.json").read_text()) == result
    return place, result, said


def run(place):
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "_in_new_process", control._run_part)
        return run_experiment(
            place / "experiment.toml", place / "data", place / "to", said.append
        ), said


def figures(result):
    return [
        (p["shape"]["family"], p["seed"], p["metrics"], p["tokens"], p["last_loss"])
        for p in result["parts"]
    ]


def test_the_shipped_experiment_compares_five_families_of_equal_size():
    experiment = read_experiment(SHIPPED)
    active = [shape.active for shape in experiment.shapes]
    assert [shape.family for shape in experiment.shapes] == [
        "mamba1",
        "mamba2",
        "rwkv7",
        "xlstm",
        "llama",
    ]
    assert len(experiment.settings.seeds) == 3 and max(active) <= 1.05 * min(active)
    assert {shape.total - shape.active for shape in experiment.shapes} == {30522 * 64}


def test_figures_over_seeds(finished, tmp_path):
    _, result, said = finished
    assert [part.split(": ")[1].split(",")[0] for part in said] == [
        "mamba2-0",
        "llama-0",
        "mamba2-1",
        "llama-1",
    ]
    values = [
        part["metrics"]["task"]["nDCG@10"]
        for part in result["parts"]
        if part["shape"]["family"] == "llama"
    ]
    llama = result["families"][1]
    assert llama["family"] == "llama" and llama["metrics"]["task"]["nDCG@10"]["values"] == values
    assert llama["metrics"]["task"]["nDCG@10"]["mean"] == pytest.approx(sum(values) / 2)
    assert values[0] != values[1], "the seed changes the weights and the order of the data"
    assert all(part["steps"] == 3 and part["peak_bytes"] is not None for part in result["parts"])
    assert len({(part["seed"], part["tokens"]) for part in result["parts"]}) == 2, (
        "with one seed all families read the same batches"
    )
    text = page_text(result)
    assert f"{llama['metrics']['task']['nDCG@10']['mean']:.3f} ± " in text and "| BM25 |" in text
    plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_finished_is_not_run_again(finished):
    place, first, _ = finished
    again, said = run(place)
    assert said == [] and again == first
    (place / "to" / "llama-0" / "part.json").unlink()  # as if it had been killed there
    resumed, said = run(place)
    assert [line.split(": ")[1].split(",")[0] for line in said] == ["llama-0"] and figures(
        resumed
    ) == figures(first)
    assert resumed["parts"][1]["peak_bytes"] is None, "its training was over"
    (place / "experiment.toml").write_text(FILE.replace("seeds = [0, 1]", "seeds = [1]"))
    fewer, said = run(place)
    assert said == [] and figures(fewer) == figures(first)[2:]
    (place / "experiment.toml").write_text(FILE.replace("1e-2", "1e-3"))
    (place / "data" / "pairs.csv").write_text("query,positive\na,b\n")
    with pytest.raises(
        InputError, match=r"mamba2-0 has a part with other settings or data \(recipe, data\)"
    ):
        run(place)


def test_a_killed_experiment_resumes(finished, tmp_path):
    """kill -9 in the training of a part ends its process too; the figures are those of an
    undisturbed run.
    """
    import psutil

    family = FILE[FILE.index("[families.llama]") : FILE.index("[recipe]")]  # one is enough
    place = write_experiment(
        tmp_path, FILE.replace(family, "").replace("seeds = [0, 1]", "seeds = [0]")
    )
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "control",
        "experiment.toml",
        "--data",
        "data",
        "--to",
        "to",
    ]
    options = {"cwd": place, "env": os.environ | PATHS, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **options)
    wait_for(
        lambda: (
            process.poll() is not None
            or (place / "to" / "mamba2-0" / "run" / "tensorboard").exists()
        )
    )
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert children and not psutil.wait_procs(children, timeout=GIVE_UP_S)[1], (
        "a part goes on without its command"
    )
    subprocess.run(command, check=True, stdout=subprocess.PIPE, **options)
    resumed = json.loads((place / "to" / "control.json").read_text())
    assert (
        figures(resumed) == figures(finished[1])[:1] and resumed["parts"][0]["peak_bytes"] is None
    )


def test_families_of_unequal_size_are_refused(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(FILE.replace("parameters = 22_000", "parameters = 3_000"))
    with pytest.raises(
        InputError, match=r"nearest to parameters = 3,000 are mamba2 .*, llama .* more than mamba2"
    ):
        read_experiment(path)
