"""`runnel doctor`: what it measures, and what it says is missing."""

import importlib.metadata
import json
import os
import tomllib
from pathlib import Path

import pytest

from runnel.commands import doctor
from runnel.errors import install_command
from runnel.models.embedder import Embedder
from runnel.search.project import Project

ROOT = Path(__file__).parents[2]


def test_every_extra_of_the_package_has_a_purpose():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert doctor.PURPOSES.keys() == declared.keys() - {"all"} and len(declared) <= 13


def test_speed_with_and_without_kernels(run, monkeypatch):
    monkeypatch.setattr(doctor, "_WORDS", 66)
    monkeypatch.setattr(doctor, "_ROUNDS", 1)
    done = run("doctor", "--json")
    pocket = json.loads(done.out)["pocket"]
    assert done.code == 0 and pocket["problem"] is None and pocket["cosine"] > 0.99
    assert pocket["tokens_per_s"] > 0 and pocket["plain_tokens_per_s"] > 0


@pytest.fixture
def without_speed(monkeypatch):
    speed = {
        "problem": None,
        "dtype": "bfloat16",
        "tokens_per_s": 9000,
        "plain_tokens_per_s": 3000,
        "cosine": 1.0,
    }
    monkeypatch.setattr(doctor, "_pocket", lambda: speed)
    return speed


def test_missing_and_old_packages_are_named_with_what_they_are_for(run, monkeypatch, without_speed):
    found = importlib.metadata.version
    of_extras = (("search", "lancedb>=0.40"), ("ray", "ray>=2.50"), ("ray", "lancedb>=0.40"))
    wanted = ["torch>=2.6", *(f'{one}; extra == "{extra}"' for extra, one in of_extras)]

    def version(name: str) -> str:
        if name == "lancedb":
            return "0.1"
        if name == "ray":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(importlib.metadata, "version", version)
    done = run("doctor")
    assert (
        "pocket        works in bfloat16: 9,000 tokens/s with kernels, 3.0 times 3,000 tokens/s in"
        " plain torch" in done.out
    )
    shown = " ".join(done.out.split())
    assert f"needs lancedb>=0.40 (it is 0.1): {install_command('search')}" in shown
    assert f"needs ray, lancedb>=0.40 (it is 0.1): {install_command('ray')}" in shown


def test_a_model_that_does_not_work_gives_exit_code_1(run, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda name: Path("missing").read_bytes())
    done = run("doctor")
    assert (
        done.code == 1
        and "pocket        does not work: " in done.out
        and "No such file or directory" in done.out
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_folders_of_texts_that_others_can_enter_are_named_with_what_closes_them(
    run, without_speed, tmp_path, monkeypatch
):
    Project(tmp_path).extend([str(tmp_path)])
    (tmp_path / "cache" / "find").mkdir(mode=0o755, parents=True)
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    assert json.loads(run("doctor", "--json").out)["open_folders"] == [
        str(tmp_path / "cache" / "find")
    ]
    (tmp_path / ".runnel").chmod(0o705)
    assert (
        f"lets other users in; to keep them out: chmod 700 {tmp_path / '.runnel'}\n"
        in run("doctor").out
    )
    (tmp_path / ".runnel" / "project.json").write_text("{")
    assert run("doctor").code == 0
