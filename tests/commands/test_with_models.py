"""`runnel find` with a real model, tiny and with random weights."""

import json
import os
import subprocess
import sys

import pytest
from helpers.tiny import tiny_model


@pytest.mark.slow
def test_memory_does_not_grow_with_the_document(tmp_path):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "tiny")

    def peak(words):
        (tmp_path / "a.txt").write_text("The cat sat on the mat to see a river. " * (words // 10))
        command = [sys.executable, "-m", "runnel", "find", "cat", "a.txt", "--model", "tiny", "--json"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process.stdout, process.stderr:
            out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and json.loads(out)["files"][0]["sentences"] == words // 10, err
        return usage.ru_maxrss / 1024

    assert peak(300_000) - peak(50_000) < 100
