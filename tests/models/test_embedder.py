"""Embedder: batches, streams and spans all agree with one text read alone."""

import itertools

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Embedder
from runnel.errors import InputError

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


def test_iterators_are_read_as_results_are_taken(embedder: Embedder) -> None:
    assert embedder.encode([]).shape == (0, embedder.dimension)
    close(embedder.encode(t for t in ["cat", "dog"]), embedder.encode(["cat", "dog"]))
    stream = embedder.encode_stream(f"cat {i}" for i in itertools.count())
    for number in range(2):
        close(next(stream), embedder.encode(f"cat {number}"))


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
        with pytest.raises(InputError, match=r"span 0 is \["):
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
    end = embedder.model.tokenizer.end_id
    for prompt in ("", "a river runs: "):
        whole = next(embedder.render([TEXT], prompt=prompt))
        cut = next(embedder.render([TEXT], prompt=prompt, max_tokens=12))
        assert len(cut) == 12 and cut[:11].tolist() == whole[:11].tolist() and cut[-1] == end
        exact = next(embedder.render([TEXT], prompt=prompt, max_tokens=len(whole)))
        assert exact.tolist() == whole.tolist() and embedder.truncated == 0
    assert len(next(embedder.render([TEXT], max_tokens=3))) == 3
    for prompt, most in (("", 2), ("a river runs:", 6)):
        with pytest.raises(InputError, match=f"max_tokens is {most}, but {most} .* tokens surround every text"):
            embedder.encode([TEXT], prompt=prompt, max_tokens=most)


def test_bad_texts(embedder: Embedder) -> None:
    for empty in ("", " \n", "\u200b", "\0", "\u0301\ufeff " * 100):
        for prompt in (None, "query"):
            with pytest.raises(InputError, match=r"empty text, texts\[1\]"):
                embedder.encode(["cat", empty], prompt=prompt)
