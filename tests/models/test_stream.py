"""Streams: the embedding of the text so far, wherever it was cut, of models with a state and of
models that read passages.
"""

from pathlib import Path

import numpy as np
import pytest
from helpers.texts import repeat
from helpers.tiny import tiny_encoder, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Embedder
from runnel.errors import InputError, StateError
from runnel.models.model import Model
from runnel.models.pocket import reader as readers

SENTENCES = [
    "The cat sat on the mat. ",
    "A river runs to the sea.\n\n",
    "The clause is executed!  ",
    "(A dog ran.) ",
    "x",
    "café ",
]
LONG = "The " + repeat("cat dog river sea mat ", 15) + "sat. "


def tiny(kind: str, folder: Path, seed: int = 0) -> Model:
    if kind not in ("passages", "passages with a state"):
        return tiny_model(folder, papers_heads=kind == "end", seed=seed)
    model = tiny_encoder(folder, mixers=kind == "passages with a state")
    model.backbone._fingerprint = f"{kind} {seed}"
    return model


@pytest.fixture(scope="module", params=["mean", "end", "passages", "passages with a state"])
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny(request.param, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def settle_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_SETTLE_CHARS", 40)


@settings(max_examples=25, deadline=None)
@given(
    st.data(), st.lists(st.sampled_from([*SENTENCES, LONG]), min_size=1, max_size=14).map("".join)
)
def test_a_stream_equals_the_whole_wherever_it_is_cut_and_saved(
    embedder: Embedder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, text: str
) -> None:
    stream = embedder.stream()
    read = ""
    path = tmp_path_factory.getbasetemp() / "stream"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        stream.feed(text[start:end])
        read += text[start:end]
        if read.strip() and data.draw(st.booleans()):
            np.testing.assert_allclose(stream.embedding(), embedder.encode(read), atol=2e-5)
        if data.draw(st.booleans()):
            stream.save(path)
            tokens = stream.tokens
            stream = embedder.load_stream(path)
            assert stream.tokens == tokens
    np.testing.assert_allclose(stream.embedding(), embedder.encode(text), atol=2e-5)


@pytest.mark.parametrize(
    ("block", "begun", "rest"),
    [
        (
            12,
            "".join(SENTENCES[i] for i in (1, 2, 0, 3, 1, 0, 1, 2, 0, 1)) + "The clause is exe",
            "cuted!  ",
        ),  # to the one before
        (5, repeat("The cat sat on. ", 3) + "The finall", "y"),  # all are one again
    ],
)
def test_a_last_word_that_gets_fewer_tokens_moves_the_ends_of_passages(
    tmp_path: Path, block: int, begun: str, rest: str
) -> None:
    embedder = Embedder(tiny_encoder(tmp_path, block=block))
    vector = embedder.stream().feed(begun).feed(rest).embedding()
    np.testing.assert_allclose(vector, embedder.encode(begun + rest), atol=2e-5)


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    stream = Embedder(tiny_encoder(tmp_path)).stream()
    for _ in range(200):
        stream.feed(SENTENCES[0])
    assert stream.tokens > 1000 and len(stream._text) < 300


def test_an_empty_stream_has_no_embedding(embedder: Embedder, tmp_path: Path) -> None:
    for empty in (" \n", "\u200b", repeat("\0 \ufeff", 40)):
        for stream in (embedder.stream(), embedder.stream(prompt="query: ")):
            stream.feed(empty).save(tmp_path / "stream")
            for one in (stream, embedder.load_stream(tmp_path / "stream")):
                with pytest.raises(InputError, match="has received only whitespace"):
                    one.embedding()
                assert np.isfinite(one.feed("cat").embedding()).all()


@pytest.mark.parametrize("kind", ["end", "passages"])
def test_a_stream_of_another_model_is_refused(kind: str, tmp_path: Path) -> None:
    Embedder(tiny(kind, tmp_path)).stream().feed("The cat sat.").save(tmp_path / "stream")
    with pytest.raises(StateError, match=f"{tmp_path / 'stream'} .*another model"):
        Embedder(tiny(kind, tmp_path, seed=9)).load_stream(tmp_path / "stream")
