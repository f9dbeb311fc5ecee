"""Indexes that are kept for the next command: the same object while its files are unchanged, else a new one."""

import shutil

import pytest
from helpers.tiny import tiny_model

from runnel import Document, Index
from runnel.commands import loading
from runnel.commands.loading import open_index
from runnel.errors import StoreError
from runnel.models import base


@pytest.fixture
def keeping(monkeypatch):
    for module, name in ((base, "kept"), (loading, "_indexes")):
        monkeypatch.setattr(module, name, None)  # also what is restored after the test
    loading.keep_loaded()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def model(tiny, tmp_path):
    return str(shutil.copytree(tiny, tmp_path / "tiny"))


def test_an_index_is_kept_and_sees_changes(keeping, model, tmp_path):
    place = str(tmp_path / "library")
    with Index.create(place, model) as index:
        index.add([Document("a", "a river runs to the sea")])
    first = open_index(place)
    assert open_index(place) is first and [hit.id for hit in first.search("river")] == ["a"]
    with Index.open(place) as index:  # as another process would
        index.add([Document("b", "a river of cats")])
    assert sorted(hit.id for hit in open_index(place).search("river")) == ["a", "b"]
    shutil.rmtree(place)
    with pytest.raises(StoreError, match="no index"):
        open_index(place)
    with Index.create(place, model) as index:  # as many commits as the first one
        index.add([Document("c", "the sea")])
    assert [hit.id for hit in open_index(place).search("sea")] == ["c"]


def test_an_index_with_a_changed_model_is_refused(keeping, model, tmp_path):
    place = str(tmp_path / "library")
    with Index.create(place, model) as index:
        index.add([Document("a", "a river runs to the sea")])
    open_index(place)
    tiny_model(tmp_path / "tokenizer", seed=1).save(model)
    with pytest.raises(StoreError, match="gives other vectors"):
        open_index(place)
