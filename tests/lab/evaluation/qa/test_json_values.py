"""Values of large JSON files are read one by one, whatever the pieces of the file are."""

import gzip
import json

import pytest
from helpers.memory import with_peak
from helpers.texts import repeat

from runnel.errors import ReadError
from runnel.lab.evaluation.qa import json_values
from runnel.lab.evaluation.qa.json_values import read_values

VALUE = {
    "a": {"x": [1, {"y": None}], "z": '{[,:]}\u00e9\\"'},
    "b": {},
    "c": {"n": 123456, "e": -1.5e3},
}


@pytest.mark.parametrize("chars", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_objects_and_lists(tmp_path, monkeypatch, chars, indent):
    monkeypatch.setattr(json_values, "_CHARS", chars)
    path = tmp_path / "values.json"
    path.write_text(json.dumps(VALUE, indent=indent))
    assert list(read_values(path, 0)) == [((), VALUE)]
    assert list(read_values(path, 1)) == [((name,), value) for name, value in VALUE.items()]
    inner = [
        ((name, key), value) for name, values in VALUE.items() for key, value in values.items()
    ]
    assert list(read_values(path, 2)) == inner
    for count in (0, 1, 3):
        (tmp_path / "list.json.gz").write_bytes(gzip.compress(json.dumps([12] * count).encode()))
        assert list(read_values(tmp_path / "list.json.gz", 1)) == [
            ((str(i),), 12) for i in range(count)
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": "\xe9"}', "'utf-8' codec"),
        (
            gzip.compress(json.dumps({"a": repeat("b", 10_000)}).encode(), mtime=0)[:-20],
            "is damaged or incomplete",
        ),
        ('{"a": {"x": 1}', r"at character 14: expected , or }, got 'its end'"),
        ('{"a": {"x": 1}} {}', r"at character 16: expected the end of the file, got '{'"),
        ('{1: {"x": 1}}', r"at character 1: expected \", got '1'"),
        ('{"a": {"x": "y', r"at character 12: Unterminated string starting at"),
        ('{"a": {"x": ' + repeat("[", 100_000), "nested too deeply"),
    ],
)
def test_damaged_files(tmp_path, text, message):
    path = tmp_path / "values.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ReadError, match=message):
        list(read_values(path, 2))


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "values.json"
    path.write_text(json.dumps({str(i): repeat("x", 500_000) for i in range(40)}))  # 20 MB
    lengths, peak = with_peak(lambda: [len(value) for _, value in read_values(path, 1)])
    assert lengths == [500_000] * 40
    assert peak < 8e6
