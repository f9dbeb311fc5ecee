"""Embedder: batches, streams and spans all agree with one text read alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Embedder
from runnel.errors import InputError, StateError

TEXT = "The cat sat on the mat. A river runs to the sea; the dog sat, and the clause is executed finally. " * 4


@pytest.fixture(scope="module", params=[False, True], ids=["mean", "end"])
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny"), papers_heads=request.param))


def close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_text_alone_and_in_a_batch(embedder: Embedder) -> None:
    texts = [TEXT, "cat", "the dog sat on the mat", TEXT * 3, "sea"]
    batch = embedder.encode(texts)
    assert batch.shape == (5, embedder.dimension) and batch.dtype == np.float32
    close(np.linalg.norm(batch, axis=1), np.ones(5))
    for text, vector in zip(texts, batch, strict=True):
        close(vector, embedder.encode(text))


def test_no_texts_and_iterators(embedder: Embedder) -> None:
    assert embedder.encode([]).shape == (0, embedder.dimension)
    close(embedder.encode(t for t in ["cat", "dog"]), embedder.encode(["cat", "dog"]))
    close(np.stack(list(embedder.encode_stream(iter(["cat", "dog", TEXT])))), embedder.encode(["cat", "dog", TEXT]))


def test_an_endless_iterator_is_read_as_results_are_taken(embedder: Embedder) -> None:
    import itertools

    stream = embedder.encode_stream(f"cat {i}" for i in itertools.count())
    close(next(stream), embedder.encode("cat 0"))
    close(next(stream), embedder.encode("cat 1"))
    stream.close()


def test_prompts(embedder: Embedder) -> None:
    close(embedder.encode_query("cat"), embedder.encode("a river runs: cat"))
    close(embedder.encode("cat", prompt="query"), embedder.encode("a river runs: cat"))
    close(embedder.encode_document(["cat"]), embedder.encode(["cat"]))


def test_order_of_the_words_matters(embedder: Embedder) -> None:
    assert np.abs(embedder.encode("cat sat on dog") - embedder.encode("dog sat on cat")).max() > 1e-3


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_a_stream_equals_the_whole_wherever_it_is_cut(embedder: Embedder, cuts: list[int]) -> None:
    stream = embedder.stream()
    edges = [0, *sorted(cuts), len(TEXT)]
    for a, b in pairwise(edges):
        stream.feed(TEXT[a:b])
    close(stream.embedding(), embedder.encode(TEXT))


def test_a_stream_gives_an_embedding_at_any_time_and_goes_on(embedder: Embedder) -> None:
    stream, read = embedder.stream(), ""
    for piece in ("The ca", "t sat on", " the mat. ", "A riv", "er"):
        read += piece
        close(stream.feed(piece).embedding(), embedder.encode(read))
        close(stream.embedding(), embedder.encode(read))


def test_a_saved_stream_continues(embedder: Embedder, tmp_path: Path) -> None:
    stream = embedder.stream().feed(TEXT[:101])
    stream.save(tmp_path / "stream.safetensors")
    again = embedder.load_stream(tmp_path / "stream.safetensors")
    assert again.tokens == stream.tokens
    again.feed(TEXT[101:])
    close(again.embedding(), embedder.encode(TEXT))


def test_a_stream_of_another_model_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    other = Embedder(tiny_model(tmp_path / "other", seed=9))
    other.stream().feed("cat").save(tmp_path / "stream")
    with pytest.raises(StateError, match="saved by another model"):
        embedder.load_stream(tmp_path / "stream")


def test_an_empty_stream_has_no_embedding(embedder: Embedder, tmp_path: Path) -> None:
    for empty in ("  \n ", "\u200b", "\0 \ufeff"):
        for stream in (embedder.stream(), embedder.stream(prompt="query: ")):
            stream.feed(empty).save(tmp_path / "stream")
            for one in (stream, embedder.load_stream(tmp_path / "stream")):
                with pytest.raises(InputError, match="has received only whitespace"):
                    one.embedding()
                assert np.isfinite(one.feed("cat").embedding()).all()


def test_spans_see_all_before_them_and_nothing_after(embedder: Embedder) -> None:
    spans = [(0, 23), (24, 50), (0, 50), (30, 40)]
    vectors = embedder.encode_spans(TEXT, spans)
    assert vectors.shape == (4, embedder.dimension)
    close(np.linalg.norm(vectors, axis=1), np.ones(4))
    close(vectors, embedder.encode_spans(TEXT[:55] + " completely different words", spans))
    moved = embedder.encode_spans("dog " + TEXT, [(a + 4, b + 4) for a, b in spans])
    assert np.abs(vectors - moved).max() > 2e-4


def test_bad_spans(embedder: Embedder) -> None:
    assert embedder.encode_spans(TEXT, []).shape == (0, embedder.dimension)
    for span in ((5, 5), (-1, 3), (0, 10**6), (7, 3)):
        with pytest.raises(InputError, match="not inside the text"):
            embedder.encode_spans(TEXT, [span])
    with pytest.raises(InputError, match="holds no token"):
        embedder.encode_spans("cat    dog", [(4, 6)])


def test_truncation_is_counted(embedder: Embedder, caplog: pytest.LogCaptureFixture) -> None:
    vectors = embedder.encode([TEXT, "cat"], max_tokens=7)
    assert embedder.truncated == 1 and "1 texts were cut to 7 tokens" in caplog.text
    close(vectors[0], embedder.encode("The cat sat on the"))
    embedder.encode([TEXT])
    assert embedder.truncated == 0


def test_max_tokens_counts_special_tokens_and_prompt(embedder: Embedder) -> None:
    """As sentence-transformers counts; the end marker and the prompt stay."""
    end = embedder.model.tokenizer.end_id
    for prompt in ("", "a river runs: "):
        whole = next(embedder.render([TEXT], prompt=prompt))
        cut = next(embedder.render([TEXT], prompt=prompt, max_tokens=12))
        assert len(cut) == 12 and cut[:11].tolist() == whole[:11].tolist() and cut[-1] == end
        exact = next(embedder.render([TEXT], prompt=prompt, max_tokens=len(whole)))
        assert exact.tolist() == whole.tolist() and embedder.truncated == 0
    assert len(next(embedder.render([TEXT], max_tokens=3))) == 3
    with pytest.raises(InputError, match="max_tokens is 2, but 2 special tokens surround every text; increase it"):
        embedder.encode([TEXT], max_tokens=2)
    with pytest.raises(InputError, match="max_tokens is 6, but 6 tokens of the prompt and special tokens surround every text"):
        embedder.encode([TEXT], prompt="a river runs:", max_tokens=6)


def test_bad_texts(embedder: Embedder) -> None:
    for empty in ("", " \n", "\u200b", "\0", "\u0301\ufeff " * 100):
        for prompt in (None, "query"):
            with pytest.raises(InputError, match=r"cannot embed an empty text, texts\[1\]; remove it"):
                embedder.encode(["cat", empty], prompt=prompt)
    with pytest.raises(InputError, match=r"texts\[0\] is 3; expected text \(str\)"):
        embedder.encode([3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="max_tokens is 0; expected a whole number from 1"):
        embedder.encode(["cat"], max_tokens=0)


def test_a_saved_model_is_bit_exact(embedder: Embedder, tmp_path: Path) -> None:
    embedder.save(tmp_path / "model")
    again = Embedder.load(tmp_path / "model", dtype="float32")
    assert np.array_equal(again.encode([TEXT, "cat"]), embedder.encode([TEXT, "cat"]))
    assert again.model.prompts == embedder.model.prompts
