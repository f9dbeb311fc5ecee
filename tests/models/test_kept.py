"""Models that are kept for the next command: the same object while its files are unchanged, else a new one."""

import logging
import shutil
from pathlib import Path

import pytest
from helpers.tiny import tiny_model

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import CheckpointError
from runnel.models import base
from runnel.models.kept import Kept, file_states


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "kept", Kept(most=2))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(tiny, tmp_path / "tiny"))


def test_other_processes_load_each_time(model: str) -> None:
    assert Embedder.load(model).model is not Embedder.load(model).model


@pytest.mark.usefixtures("keeping")
def test_the_same_files_and_options_are_loaded_once_for_all_jobs(model: str) -> None:
    first = Embedder.load(model, dtype="float32").model
    assert Embedder.load(model, dtype="float32", truncate_dim=2).model is first
    assert Reranker.load(model, dtype="float32").model is first
    assert SentenceRetriever.load(model, dtype="float32").model is first
    assert Embedder.load(model, dtype="bfloat16").model is not first
    assert Embedder.load(model, dtype="float32", pooling="eos").model is not first


@pytest.mark.usefixtures("keeping")
def test_a_changed_model_is_loaded_again(model: str, tmp_path: Path) -> None:
    first = Embedder.load(model)
    tiny_model(tmp_path / "tokenizer", seed=1).save(model)
    second = Embedder.load(model)
    assert (first.encode(["a cat"]) != second.encode(["a cat"])).any()
    (tmp_path / "tiny" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors|weights"):
        Embedder.load(model)


@pytest.mark.usefixtures("keeping")
def test_a_relative_name_means_the_model_of_the_current_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        shutil.copytree(tiny, tmp_path / str(number) / "m")
        monkeypatch.chdir(tmp_path / str(number))
        loaded.append(Embedder.load("m").model)
    assert loaded[0] is not loaded[1]
    assert Embedder.load("m").model is loaded[1]


def test_files_that_do_not_exist_have_no_state(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "there").touch()
    found = file_states(tmp_path / name for name in ("circle", "missing", "there", "."))
    assert found == file_states([tmp_path / "there"])
    (tmp_path / "there").write_text("changed")
    assert found != file_states([tmp_path / "there"])


def test_only_the_last_used_are_kept() -> None:
    kept = Kept(most=2)
    first, second = (kept.get(key, None, object) for key in "ab")
    assert kept.get("a", None, object) is first
    kept.get("c", None, object)
    assert kept.get("a", None, object) is first and kept.get("b", None, object) is not second
    assert first in kept.values() and len(list(kept.values())) == 2


def test_messages_of_loading_are_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that the command which loaded the object did not show, because it was not verbose."""
    kept = Kept(most=1)

    def load() -> object:
        logging.getLogger("runnel").warning("an odd model")
        logging.getLogger("runnel").info("read slowly")
        return object()

    shown = []
    for level in (logging.WARNING, logging.WARNING, logging.INFO):
        caplog.clear()
        caplog.set_level(level, "runnel")
        kept.get("model", None, load)
        shown.append(caplog.messages)
    assert shown == [["an odd model"], ["an odd model"], ["an odd model", "read slowly"]]
