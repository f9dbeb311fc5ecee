"""Indexes that are kept for the next command: the same object while its files are unchanged, else a new one."""

import shutil

import pytest
from helpers.tiny import tiny_model

from runnel import Document, Index
from runnel.commands import indexes
from runnel.commands.indexes import open_index
from runnel.errors import StoreError
from runnel.models import base


@pytest.fixture
def keeping(monkeypatch):
    for module, name in ((base, "kept"), (indexes, "_indexes")):
        monkeypatch.setattr(module, name, None)  # also what is restored after the test
    indexes.keep_loaded()


def test_an_index_is_kept_and_sees_changes(keeping, tmp_path):
    place, model = str(tmp_path / "library"), str(tmp_path / "tiny")
    tiny_model(tmp_path / "tokenizer").save(model)
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
    tiny_model(tmp_path / "tokenizer", seed=1).save(model)
    with pytest.raises(StoreError, match="gives other vectors"):
        open_index(place)
