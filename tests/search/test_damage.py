"""A full disk and damaged files, in the stores themselves: nothing committed is lost, and a plain error says what to do."""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest
from helpers.stored_documents import SETTINGS, document, unit

from runnel.errors import StoreError
from runnel.search.lance import LanceStore

CAT = document("cat", ["the cat sat. ", "it slept."], [unit(1, 0, 0, 0), unit(1, 1, 0, 0)], year=2020)
LARGE = document("large", [f"word{i} and more. " for i in range(4000)], [unit(1, i, 0, 0) for i in range(4000)])


def seen(store):
    found = {(one.document, one.number) for one in store.nearest(unit(1, 0, 0, 0), 9999, [])}
    words = {(one.document, one.number) for one in store.lexical("cat and", 9999, [])}
    return store.documents(list(store.content_hashes())), found, words, store.last_commit().documents


@pytest.mark.parametrize("change", ["commit", "optimize"])
def test_a_full_disk_loses_nothing(change, tmp_path, full_disk):
    store = LanceStore.create(str(tmp_path / "index"), SETTINGS)
    if change != "commit":
        store.commit([LARGE[0]], LARGE[1], [])
    store.commit([CAT[0]], CAT[1], ["large"])
    before = seen(store)
    full_disk()
    if change == "optimize":  # there may be room for what little it writes
        with suppress(StoreError):
            store.optimize()
    else:
        with pytest.raises(StoreError, match=r"cannot read or write .*committed documents are safe.*is the disk full\?"):
            store.commit([LARGE[0]], LARGE[1], ["cat"])
    assert seen(store) == before  # in the store that failed, too
    store.close()
    again = LanceStore.open(str(tmp_path / "index"))
    assert seen(again) == before
    again.close()


def test_a_full_disk_is_reported_with_the_place_when_an_index_is_made(tmp_path, full_disk):
    full_disk(10)
    with pytest.raises(StoreError, match=r"cannot read or write the index at .*index: .*is the disk full\?"):
        LanceStore.create(str(tmp_path / "index"), SETTINGS)


def test_any_file_that_is_lost_or_cut_is_told(tmp_path):
    """Or what is read is right; without its last version the table of commits shows the commit before."""
    store = LanceStore.create(str(tmp_path / "index"), SETTINGS)
    store.commit([CAT[0]], CAT[1], [])
    right = seen(store)
    store.close()
    told = 0
    for path in sorted(path.relative_to(tmp_path / "index") for path in (tmp_path / "index").rglob("*") if path.is_file()):
        for damage in ("lost", "cut"):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "index", copy)
            if damage == "lost":
                (copy / path).unlink()
            else:
                (copy / path).write_bytes((copy / path).read_bytes()[: (copy / path).stat().st_size // 2])
            try:
                opened = LanceStore.open(str(copy))
                assert seen(opened) == right or opened.last_commit().number == 0, (path, damage)
                opened.close()
            except StoreError as error:
                told += 1
                assert "is damaged" in str(error) or "has lost files" in str(error) or "there is no index" in str(error), error
            shutil.rmtree(copy)
    assert told > 10


def test_a_database_of_another_program_is_told(tmp_path):
    import lancedb

    lancedb.connect(str(tmp_path / "index")).create_table("commits", [{"a": 1}])
    with pytest.raises(StoreError, match="there is no index at"):
        LanceStore.open(str(tmp_path / "index"))


@pytest.mark.parametrize("name", ["documents", "passages", "commits"])
def test_an_index_that_has_lost_a_table_is_told_and_not_overwritten(tmp_path, name):
    folder = tmp_path / "index"
    store = LanceStore.create(str(folder), SETTINGS)
    store.commit([CAT[0]], CAT[1], [])
    store.close()
    shutil.rmtree(folder / f"{name}.lance")
    with pytest.raises(
        StoreError, match="there is no index at" if name == "commits" else f"has lost its {name}; restore it from"
    ):
        LanceStore.open(str(folder))
    with pytest.raises(
        StoreError, match="has lost its list of commits; restore it" if name == "commits" else "already holds an index"
    ):
        LanceStore.create(str(folder), SETTINGS)


def test_an_index_whose_making_was_cut_short_can_be_made(tmp_path):
    folder = tmp_path / "index"
    LanceStore.create(str(folder), SETTINGS).close()
    for name in ("commits", "passages", "documents"):
        shutil.rmtree(folder / f"{name}.lance" / "_versions")
        with pytest.raises(StoreError, match="there is no index at"):
            LanceStore.open(str(folder))
        LanceStore.create(str(folder), SETTINGS).close()
        assert LanceStore.open(str(folder)).last_commit().number == 0
        shutil.rmtree(folder / "commits.lance" / "_versions")
