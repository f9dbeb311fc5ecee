"""Models and indexes that are kept for the next command: the same object while its files are unchanged, else a new one."""

import logging
import shutil

import pytest
from helpers.tiny import tiny_model

from runnel import Document, Embedder, Index, Reranker
from runnel.commands import loading
from runnel.commands.loading import load, open_index
from runnel.errors import CheckpointError, StoreError


@pytest.fixture
def keeping(monkeypatch):
    monkeypatch.setattr(loading, "_kept", None)
    loading.keep_loaded()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def model(tiny, tmp_path):
    return str(shutil.copytree(tiny, tmp_path / "tiny"))


def test_a_command_of_its_own_loads_each_time(model):
    assert load(Embedder.load, model) is not load(Embedder.load, model)


def test_the_same_files_and_options_are_loaded_once(keeping, model):
    first = load(Embedder.load, model, dtype="float32")
    assert load(Embedder.load, model, dtype="float32") is first
    assert load(Embedder.load, model, dtype="bfloat16").model.backbone is not first.model.backbone
    assert isinstance(load(Reranker.load, model, dtype="float32"), Reranker)
    assert load(Embedder.load, model, dtype="float32") is first


def test_a_changed_model_is_loaded_again(keeping, model, tmp_path):
    first = load(Embedder.load, model)
    tiny_model(tmp_path / "tokenizer", seed=1).save(model)
    second = load(Embedder.load, model)
    assert (first.encode(["a cat"]) != second.encode(["a cat"])).any()
    (tmp_path / "tiny" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors|weights"):
        load(Embedder.load, model)


def test_a_relative_name_means_the_model_of_the_current_folder(keeping, tiny, tmp_path, monkeypatch):
    loaded = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        shutil.copytree(tiny, tmp_path / str(number) / "m")
        monkeypatch.chdir(tmp_path / str(number))
        loaded.append(load(Embedder.load, "m"))
    assert loaded[0] is not loaded[1]
    assert load(Embedder.load, "m") is loaded[1]


def test_only_the_last_used_are_kept(keeping, model, monkeypatch):
    monkeypatch.setattr(loading, "_MOST", 2)
    first, second = load(Embedder.load, model), load(Reranker.load, model)
    assert load(Embedder.load, model) is first
    load(Embedder.load, model, dtype="bfloat16")
    assert load(Embedder.load, model) is first and load(Reranker.load, model) is not second


def test_messages_of_loading_are_repeated(keeping, model, caplog):
    """Also one that the command which loaded the model did not show, because it was not verbose."""

    class Talking:
        @staticmethod
        def load(name):
            logging.getLogger("runnel").warning("an odd model")
            logging.getLogger("runnel").info("read slowly")
            return object()

    shown = []
    for level in (logging.WARNING, logging.WARNING, logging.INFO):
        caplog.clear()
        caplog.set_level(level, "runnel")
        load(Talking.load, model)
        shown.append(caplog.messages)
    assert shown == [["an odd model"], ["an odd model"], ["an odd model", "read slowly"]]


@pytest.mark.parametrize("store", ["local", "lance"])
def test_an_index_is_kept_and_sees_changes(keeping, model, tmp_path, store):
    place = str(tmp_path / "library")
    with Index.create(place, model, store=store) as index:
        index.add([Document("a", "a river runs to the sea")])
    first = open_index(place)
    assert open_index(place) is first and [hit.id for hit in first.search("river")] == ["a"]
    with Index.open(place) as index:  # as another process would
        index.add([Document("b", "a river of cats")])
    assert sorted(hit.id for hit in open_index(place).search("river")) == ["a", "b"]
    shutil.rmtree(place)
    with pytest.raises(StoreError, match="no index"):
        open_index(place)
    with Index.create(place, model, store=store) as index:  # as many commits as the first one
        index.add([Document("c", "the sea")])
    assert [hit.id for hit in open_index(place).search("sea")] == ["c"]


def test_an_index_with_a_changed_model_is_refused(keeping, model, tmp_path):
    place = str(tmp_path / "library")
    with Index.create(place, model, store="local") as index:
        index.add([Document("a", "a river runs to the sea")])
    open_index(place)
    tiny_model(tmp_path / "tokenizer", seed=1).save(model)
    with pytest.raises(StoreError, match="gives other vectors"):
        open_index(place)
