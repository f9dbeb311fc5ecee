"""Sets from the hub's cache, as the hub's client stores them; what is not there is named."""

import json
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.hub import hub_ids
from runnel.evaluation.qa.loading import read_qa_sets
from runnel.evaluation.qa.sets import SETS, SUITES
from tests.helpers.qa_files import ATTIC

ROW = {"input": "Where?", "context": ATTIC, "answers": ["in the attic"]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty hub cache, and no hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def put(cache: Path, hub_id: str, name: str, content: bytes) -> Path:
    """Store a file as the hub's client does: a link to a blob."""
    folder = cache / f"datasets--{hub_id.replace('/', '--')}"
    blob, link = folder / "blobs" / f"{len(list(folder.rglob('*'))):040x}", folder / "snapshots" / ("0" * 40) / name
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(blob)
    (folder / "refs" / "main").write_text("0" * 40)
    return link


def lines(*rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zipped(**members: bytes) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"data/{name}.jsonl", content)
    return file.getvalue()


def names(hub_id, *only):
    return [one.name for one in read_qa_sets(hub_id, only)]


def test_files_and_archives(cache):
    put(
        cache,
        "THUDM/LongBench",
        "data.zip",
        zipped(qasper=lines(ROW), qasper_e=lines(ROW), musique=lines(ROW, ROW | {"_id": "b"})),
    )
    put(cache, "Infinigence/LVEval", "loogle_CR_mixup.zip", zipped(loogle_CR_mixup_16k=lines(ROW)))
    put(
        cache,
        "L4NLP/LEval",
        "LEval/Exam/tpo.jsonl",
        lines({"input": ATTIC, "instructions": ["Why?\nA. a\nB. b"], "outputs": ["B"]}),
    )
    put(cache, "kensho/DocFinQA", "test.json", json.dumps([{"Context": ATTIC, "Question": "When?", "Answer": "1912"}]).encode())
    (one,) = read_qa_sets("THUDM/LongBench", ["musique"])
    assert (len(one.questions), one.license) == (2, "MIT")
    assert names("THUDM/LongBench", "musique", "qasper") == ["qasper", "musique"]  # in the order of the table
    assert names("Infinigence/LVEval", "loogle_CR_mixup_16k") == ["loogle_CR_mixup_16k"]
    assert names("L4NLP/LEval", "tpo") == ["tpo"] and names("kensho/DocFinQA") == ["docfinQA"]


def test_the_released_data(cache):
    units = ["It is in the attic. ", "Ada knows."]
    point = {"full_text_sentences": units, "question": "Where?", "answer": ["attic"], "answer_type": "sentence"}
    for name, data in (("", {"narrativeqa": {"a": point}}), ("_per_category", {"creative": {"a": point}})):
        put(cache, "MambaRetriever/MambaRetriever", f"mambaretriever_test{name}.json", json.dumps(data).encode())
    (one,) = read_qa_sets("MambaRetriever/MambaRetriever")
    assert (one.name, one.license, one.questions[0].category) == ("narrativeqa", "CC-BY-NC", "creative")


def test_every_set_on_the_hub_has_a_file_of_its_own():
    hubs = [SUITES[one.suite] for one in SETS.values()]
    assert {suite.hub for suite in hubs if not suite.hub} == {""} and len(hub_ids()) == 7
    assert {name for name, suite in SUITES.items() if not suite.hub} == {"BAMBOO", "ELITR-Bench"}


def test_what_is_not_there(cache):
    with pytest.raises(ReadError, match=r"^data.zip of THUDM/LongBench cannot be fetched from the hub \(.*\); give a folder"):
        names("THUDM/LongBench")
    with pytest.raises(InputError, match=r"THUDM/LongBench has no set 'qaspr'; did you mean qasper\?"):
        names("THUDM/LongBench", "qaspr")
    with pytest.raises(
        InputError, match=r"there is no file or folder nobody/nothing, and no suite with this hub id; docs/qa-sets.md"
    ):
        names("nobody/nothing")
    link = put(cache, "THUDM/LongBench", "data.zip", zipped(musique=lines(ROW)))
    with pytest.raises(ReadError, match=r"data.zip has 0 files qasper.jsonl; expected one"):
        names("THUDM/LongBench", "qasper")
    link.resolve().write_bytes(b"no archive")
    with pytest.raises(ReadError, match=r"data.zip is damaged \(.*\); delete it, so that it is downloaded again"):
        names("THUDM/LongBench", "qasper")
    put(cache, "kensho/DocFinQA", "README.md", b"")
    with pytest.raises(ReadError, match=r"kensho/DocFinQA has no file test.json on the hub; give a folder with its files"):
        names("kensho/DocFinQA")


def test_a_folder_of_that_name_is_preferred(cache, tmp_path):
    folder = tmp_path / "THUDM" / "LongBench"
    folder.mkdir(parents=True)
    (folder / "qasper.jsonl").write_bytes(lines(ROW))
    assert names("THUDM/LongBench") == ["qasper"]
