"""Cut and quantized vectors, compared with sentence-transformers."""

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Document, Embedder, Index
from runnel.errors import InputError
from runnel.models.precision import PRECISIONS, quantize, truncated, value_ranges

RNG = np.random.default_rng(0)
TEXTS = ["the cat sat on the mat", "a river runs to the sea", "the dog"]


def vectors(count: int, width: int) -> np.ndarray:
    found = RNG.standard_normal((count, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("count", "width"), [(0, 16), (1, 8), (7, 13), (300, 64)])
def test_numbers_equal_those_of_sentence_transformers(precision, count, width):
    from sentence_transformers import quantize_embeddings as theirs

    given = vectors(count, width)
    ranges = None
    if precision in ("int8", "uint8"):
        ranges = value_ranges(vectors(50, width))  # of others: some values are beyond
        ranges[:, 0] = 0.1  # a number that never varies
    ours = quantize(given, precision, ranges)
    expected = theirs(given, precision, ranges=ranges)
    assert (
        ours.dtype == expected.dtype
        and ours.shape == expected.shape
        and np.array_equal(ours, expected)
    )


@pytest.mark.parametrize(
    ("precision", "ranges", "message"),
    [
        ("int4", None, "precision is 'int4'"),
        ("int8", None, r"int8 vectors with ranges of shape None; expected shape \(2, 8\)"),
        (
            "binary",
            np.zeros((2, 8), np.float32),
            r"binary vectors with ranges of shape \(2, 8\); expected shape None",
        ),
        (
            "uint8",
            np.zeros((2, 7), np.float32),
            r"ranges of shape \(2, 7\); expected shape \(2, 8\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(precision, ranges, message):
    with pytest.raises(InputError, match=message):
        quantize(vectors(3, 8), precision, ranges)
    for given in (vectors(1, 8), vectors(0, 8), vectors(2, 8)[0]):
        with pytest.raises(InputError, match="at least two vectors"):
            value_ranges(given)


def test_a_cut_vector_has_unit_length():
    given = vectors(5, 12)
    for width in (1, 7, 12):
        part = truncated(given, width)
        assert part.shape == (5, width) and np.allclose(np.linalg.norm(part, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(part[0], truncated(given[0], width), atol=1e-7)
    assert truncated(given, 12) is given
    assert not truncated(np.array([[0, 0, 1]], np.float32), 2).any()  # no direction


def test_encode_cuts_and_quantizes(embedder):
    whole = embedder.encode(TEXTS)
    assert np.array_equal(embedder.encode(TEXTS, precision="binary"), quantize(whole, "binary"))
    ranges = value_ranges(whole[:, :7] * 2)
    cut = embedder.encode(TEXTS, truncate_dim=7)
    np.testing.assert_allclose(cut, truncated(whole, 7), atol=1e-6)
    short = embedder.encode(TEXTS, truncate_dim=7, precision="int8", ranges=ranges)
    assert np.array_equal(short, quantize(cut, "int8", ranges))
    assert embedder.encode([], truncate_dim=16, precision="ubinary").shape == (0, 2)
    assert embedder.encode(TEXTS[0], precision="ubinary").shape == (whole.shape[1] // 8,)
    with pytest.raises(InputError, match="int8 vectors with ranges of shape None"):
        embedder.encode(TEXTS, precision="int8")


def test_all_vectors_of_an_embedder_and_its_index_are_cut_alike(embedder, tmp_path):
    short = Embedder(embedder.model, truncate_dim=5)
    expected = embedder.encode(TEXTS, truncate_dim=5)
    np.testing.assert_allclose(short.encode(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(short.stream().feed(TEXTS[1]).embedding(), expected[1], atol=1e-5)
    spans = [(0, 7), (8, len(TEXTS[0]))]
    whole = embedder.encode_spans(TEXTS[0], spans)
    np.testing.assert_allclose(short.encode_spans(TEXTS[0], spans), truncated(whole, 5), atol=1e-6)
    assert short.encode([]).shape == (0, 5) == short.encode([], truncate_dim=5).shape
    with pytest.raises(InputError, match=r"truncate_dim.* 6.* 5"):
        short.encode(TEXTS, truncate_dim=6)
    with pytest.raises(InputError, match=r"truncate_dim.* 1000.* \d+"):
        Embedder(embedder.model, truncate_dim=1000)
    with Index.create(tmp_path / "index", short) as index:
        index.add(Document(str(i), text) for i, text in enumerate(TEXTS))
    with Index.open(tmp_path / "index", embedder) as again:  # the index has the width
        assert (
            again.embedder.dimension == 5 == again.store.settings.dimension
            and again.search(TEXTS[1])[0].id == "1"
        )
        assert again.add([Document("new", "the cat ran")]).failed == {}
