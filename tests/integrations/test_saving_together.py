"""Processes that train together all save their model to the same folder."""

import threading
import time
from pathlib import Path

import pytest
from helpers.tiny import tiny_model

from runnel import Embedder
from runnel.errors import CheckpointError
from runnel.integrations.sentence_transformers import sentence_transformer

SETTINGS = "config_sentence_transformers.json"  # the library opens it for writing, which empties it, in each process


def test_settings_that_another_process_has_begun_to_write(tmp_path: Path) -> None:
    def write() -> None:
        for text in ('{"prom', '{"prompts": {"query": "the dog: "}}'):
            time.sleep(0.1)
            (tmp_path / SETTINGS).write_text(text)

    module = sentence_transformer(tiny_model(tmp_path / "tiny"))[0]
    (tmp_path / SETTINGS).write_text("")
    other = threading.Thread(target=write)
    other.start()
    module.save(str(tmp_path))
    other.join()
    assert Embedder.load(tmp_path).model.prompts == {"query": "the dog: "} == module.model.prompts


def test_settings_that_stay_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sentence_transformer(tiny_model(tmp_path / "tiny"))[0]
    (tmp_path / SETTINGS).write_text("{")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(CheckpointError, match=r"config_sentence_transformers\.json cannot be read"):
        module.save(str(tmp_path))
