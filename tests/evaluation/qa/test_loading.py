"""Sets are found by their files in folders, one by one, and what is missing or ambiguous is named."""

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.loading import find_files, read_qa_sets
from runnel.evaluation.qa.sets import SETS
from tests.helpers.qa_files import ATTIC, write_rows

ROW = {"input": "Where?", "context": ATTIC, "answers": ["in the attic"]}


def names(path, *only):
    return [one.name for one in read_qa_sets(path, only)]


def test_a_folder_of_several_suites(tmp_path):
    write_rows(tmp_path / "LongBench" / "data" / "qasper.jsonl", [ROW])
    write_rows(tmp_path / "LongBench" / "data" / "qasper_e.jsonl", [ROW])  # of LongBench-E, which is not used
    write_rows(tmp_path / "LVEval" / "loogle_MIR_mixup_64k.jsonl", [ROW])
    write_rows(tmp_path / ".cache" / "qasper.jsonl", [ROW])
    write_rows(tmp_path / "LEval" / "tpo.jsonl", [{"damaged": 1}])
    assert list(find_files(tmp_path)) == ["qasper", "loogle_MIR_mixup_64k", "tpo"]
    assert names(tmp_path, "qasper") == ["qasper"] == names(tmp_path / "LongBench")
    sets = read_qa_sets(str(tmp_path))
    assert [next(sets).name, next(sets).name] == ["qasper", "loogle_MIR_mixup_64k"]  # read one by one
    with pytest.raises(InputError, match=r"tpo.jsonl, line 1: expected a text as \"input\", got the keys 'damaged'"):
        next(sets)


def test_every_set_has_files():
    """No file belongs to two sets."""
    assert len({(one.suite, one.task) for one in SETS.values()}) == len(SETS)


def test_links_of_the_hubs_cache(tmp_path):
    blob = write_rows(tmp_path / "blobs" / "0a1b", [ROW])
    (tmp_path / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "snapshots" / "1" / "qasper.jsonl").symlink_to(blob)
    assert names(tmp_path / "snapshots" / "1") == ["qasper"]


def test_a_set_in_two_places(tmp_path):
    for folder in ("one", "two"):
        write_rows(tmp_path / folder / "qasper.jsonl", [ROW])
    with pytest.raises(
        InputError, match=r"qasper is in .*one/qasper.jsonl and in .*two/qasper.jsonl; give the folder that has one"
    ):
        names(tmp_path)


def test_what_is_missing(tmp_path):
    with pytest.raises(
        InputError, match=r"has no files of LongBench, InfiniteBench, .*; docs/qa-sets.md lists the files of each set"
    ):
        names(tmp_path)
    path = write_rows(tmp_path / "qasper.jsonl", [ROW])
    for place in (tmp_path, path):
        with pytest.raises(InputError, match=r"has no set 'qaspr'; did you mean qasper\?"):
            names(place, "qaspr")
    with pytest.raises(InputError, match="has no set 'tpo'; it has qasper"):
        names(tmp_path, "tpo")
    with pytest.raises(ReadError, match="no file"):
        names(tmp_path / "none.jsonl")


def test_unknown_files(tmp_path):
    with pytest.raises(InputError, match=r"mine.txt: expected a folder, a file of a set in docs/qa-sets.md, .json of paper E"):
        names(write_rows(tmp_path / "mine.txt", [ROW]))
    with pytest.raises(InputError, match=r"mine.jsonl, line 1: unknown field 'context'; expected id, question, document"):
        names(write_rows(tmp_path / "mine.jsonl", [ROW]))
    with pytest.raises(ReadError, match=r"mine.json is not valid JSON at character 0: expected { or \[, got 't'"):
        names(write_rows(tmp_path / "mine.json", ["text"]))
