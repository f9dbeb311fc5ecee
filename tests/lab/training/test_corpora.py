"""Corpora, queries, and documents by id."""

import json
import subprocess
import sys

import pytest

from runnel.errors import InputError, ReadError
from runnel.lab.training.data import Texts, read_corpus, read_queries
from runnel.records import Document


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


@pytest.mark.parametrize(
    "lines",
    [
        [
            {"_id": "7", "title": "T", "text": "one"},
            {"_id": "8", "title": "", "text": "two"},
            {"_id": "9", "title": "U", "text": ""},
        ],
        [{"docid": 7, "title": "T", "document_text": "one"}, {"docid": 8, "document_text": "two"}, {"docid": 9, "contents": "U"}],
        [{"id": "7", "contents": "T one"}, {"id": "8", "text": "two"}, {"id": "9", "text": "U"}],
        ["7\thttp://x\tT\tone", "8\thttp://y\t\ttwo", "9\thttp://z\tU\t"],
        ["7\thttp://x\tT\tone", "8\ttwo", "9\thttp://z\tU\t"],
    ],
    ids=["beir", "tevatron", "pyserini", "documents", "mixed"],
)
def test_corpus_formats(tmp_path, lines):
    found = list(read_corpus(write(tmp_path / "corpus", *lines)))
    assert found == [Document("7", "T one"), Document("8", "two"), Document("9", "U")]


def test_corpus_and_queries_of_a_folder(tmp_path):
    write(tmp_path / "corpus.jsonl", {"_id": "a", "text": "x"})
    write(tmp_path / "queries.jsonl", {"_id": "q", "text": "y"}, {"_id": "r", "text": ""})
    assert list(read_corpus(tmp_path)) == [Document("a", "x")]
    assert read_queries(tmp_path) == {"q": "y", "r": ""}
    empty = write(tmp_path / "x" / "y", "").parent
    with pytest.raises(ReadError, match=r"corpus\.jsonl"):
        list(read_corpus(empty))


@pytest.mark.parametrize(
    "line",
    [{"text": "no id"}, {"_id": "", "text": "x"}, {"_id": "b"}, {}, "no tab", "a\tb\tc", "\ttext without id", "a\tb\tc\td\te"],
)
def test_bad_rows(tmp_path, line):
    first = "a\tx" if isinstance(line, str) else {"_id": "a", "text": "x"}
    with pytest.raises(InputError, match="corpus, line 2: "):
        list(read_corpus(write(tmp_path / "corpus", first, line)))


def test_a_query_id_twice(tmp_path):
    with pytest.raises(InputError, match="two have the id 'q'"):
        read_queries(write(tmp_path / "queries.tsv", "q\tx", "r\ty", "q\tz"))


# ---- by id -------------------------------------------------------------------------------------------------------------


def test_texts():
    documents = [Document("b", "x\0\u2028"), Document("a", ""), Document("ü", "🜨")]
    texts = Texts(iter(documents))
    assert len(texts) == 3 and list(texts) == documents
    assert [texts.get(name) for name in ("ü", "b", "a", "c")] == ["🜨", "x\0\u2028", "", None]
    assert [texts.at(row) for row in (2, 0)] == ["🜨", "x\0\u2028"] and texts.row("ü") == 2 and texts.row("c") is None
    assert len(Texts([])) == 0


def test_texts_refuse_an_id_twice():
    with pytest.raises(InputError, match="two documents of the corpus have the id 'b'"):
        Texts([Document(name, "") for name in "abcb"])


def test_texts_take_little_memory():
    """20,000 documents of 10 kB, 200 MB in all, read from a generator and fetched again."""
    code = """
import resource, sys
from runnel.records import Document
from runnel.lab.training.data import Texts
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))
before = peak()
texts = Texts(Document(str(n), f"{n} " + "x" * 10_000) for n in range(20_000))
assert all(texts.get(str(n)).startswith(f"{n} ") for n in range(0, 20_000, 97))
sys.stdout.write(str(peak() - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 50
