"""Streams of a model that reads passages: the embedding of the text so far, wherever it was cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Embedder
from runnel.errors import InputError, StateError
from runnel.models import stream as streams

SENTENCES = [
    "The cat sat on the mat. ",
    "A river runs to the sea.\n\n",
    "The finally clause is executed!  ",
    "(A dog ran.) ",
    "x",
]
LONG = "The " + "cat dog river sea mat " * 15 + "sat. "


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_encoder(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def settle_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SETTLE_CHARS", 40)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.lists(st.sampled_from([*SENTENCES, LONG]), min_size=1, max_size=14).map("".join))
def test_a_stream_equals_the_whole_wherever_it_is_cut(embedder: Embedder, data: st.DataObject, text: str) -> None:
    stream = embedder.stream()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    read = ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        stream.feed(text[start:end])
        read += text[start:end]
        if read.strip() and data.draw(st.booleans()):
            np.testing.assert_allclose(stream.embedding(), embedder.encode(read), atol=1e-5)
    np.testing.assert_allclose(stream.embedding(), embedder.encode(text), atol=1e-5)


def test_memory_does_not_grow_with_the_text(embedder: Embedder) -> None:
    stream = embedder.stream()
    for _ in range(200):
        stream.feed(SENTENCES[0])
    assert stream.tokens > 1000
    assert len(stream._text) < 300


def test_a_saved_stream_continues(embedder: Embedder, tmp_path: Path) -> None:
    text = "".join(SENTENCES) * 3 + "caf"
    stream = embedder.stream().feed(text)
    stream.save(tmp_path / "stream")
    again = embedder.load_stream(tmp_path / "stream")
    assert again.tokens == stream.tokens > 0
    np.testing.assert_allclose(again.feed("é. A dog.").embedding(), embedder.encode(text + "é. A dog."), atol=1e-5)


def test_an_empty_stream_has_no_embedding(embedder: Embedder, tmp_path: Path) -> None:
    for empty in (" \n", "\u200b", "\0 \ufeff" * 40):
        for stream in (embedder.stream(), embedder.stream(prompt="query: ")):
            stream.feed(empty).save(tmp_path / "stream")
            for one in (stream, embedder.load_stream(tmp_path / "stream")):
                with pytest.raises(InputError, match="has received only whitespace"):
                    one.embedding()
                assert np.isfinite(one.feed("cat").embedding()).all()
    with pytest.raises(InputError, match="expected text"):
        embedder.stream().feed(b"cat")  # type: ignore[arg-type]


def test_what_is_no_stream_of_this_model_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    embedder.stream().feed("The cat sat.").save(path)
    other = Embedder(tiny_encoder(tmp_path / "other", block=8))
    other.model.backbone._fingerprint = "another"
    with pytest.raises(StateError, match="saved by another model"):
        other.load_stream(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StateError, match="cannot read the saved state"):
        embedder.load_stream(path)
