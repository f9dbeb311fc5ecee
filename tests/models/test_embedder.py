"""Embedder: batches, streams and spans agree with one text read alone, and so does one pass over
documents and their passages.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.texts import repeat
from helpers.tiny import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Document, Embedder, Index, Reranker
from runnel.backbones.encoder.model import Encoder
from runnel.errors import InputError
from runnel.models.reading import read_documents
from runnel.models.recurrent.memory import DocumentState
from runnel.text.templates import Template

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
SENTENCES = [
    "The cat sat on the mat. ",
    "A river runs to the sea; the dog sat. ",
    "The clause is executed finally!\n\n",
    "Dog. ",
]
TEXT = "".join(SENTENCES * 6)
CLAUSE = (
    "The cat sat on the mat. A river runs to the sea; the dog sat, and the clause is executed"
    " finally. "
)
CLAUSES = CLAUSE * 4


@pytest.fixture(scope="module", params=[False, True], ids=["mean", "end"])
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny"), papers_heads=request.param))


def close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_text_alone_in_a_batch_and_of_an_iterator_that_is_read_as_results_are_taken(
    embedder: Embedder,
) -> None:
    texts = [CLAUSES, "cat", "the dog sat on the mat", CLAUSES * 3, "sea"]
    batch = embedder.encode(text for text in texts)
    assert batch.shape == (5, embedder.dimension) and batch.dtype == np.float32
    assert embedder.encode([]).shape == (0, embedder.dimension)
    close(np.linalg.norm(batch, axis=1), np.ones(5))
    for text, vector in zip(texts, batch, strict=True):
        close(vector, embedder.encode(text))
    stream = embedder.encode_stream(f"cat {i}" for i in itertools.count())
    for number in range(2):
        close(next(stream), embedder.encode(f"cat {number}"))


def test_spans_see_all_before_them_and_nothing_after(embedder: Embedder) -> None:
    spans = [(0, 23), (24, 50), (0, 50), (30, 40)]
    vectors = embedder.encode_spans(CLAUSES, spans)
    assert vectors.shape == (4, embedder.dimension)
    close(np.linalg.norm(vectors, axis=1), np.ones(4))
    close(vectors, embedder.encode_spans(CLAUSES[:55] + " completely different words", spans))
    moved = embedder.encode_spans("dog " + CLAUSES, [(a + 4, b + 4) for a, b in spans])
    assert np.abs(vectors - moved).max() > 2e-4


def test_max_tokens_counts_special_tokens_and_prompt(
    embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = embedder.encode([CLAUSES, "cat"], max_tokens=7)
    assert embedder.truncated == 1 and "1 texts were cut to 7 tokens" in caplog.text
    close(vectors[0], embedder.encode("The cat sat on the"))
    end = embedder.model.tokenizer.end_id
    for prompt in ("", "a river runs: "):
        whole = next(embedder.render([CLAUSES], prompt=prompt))
        cut = next(embedder.render([CLAUSES], prompt=prompt, max_tokens=12))
        assert len(cut) == 12 and cut[:11].tolist() == whole[:11].tolist() and cut[-1] == end
        exact = next(embedder.render([CLAUSES], prompt=prompt, max_tokens=len(whole)))
        assert exact.tolist() == whole.tolist() and embedder.truncated == 0
    assert len(next(embedder.render([CLAUSES], max_tokens=3))) == 3
    for prompt, most in (("", 2), ("a river runs:", 6)):
        with pytest.raises(InputError, match=f"max_tokens.* {most}.* {most} .*tokens"):
            embedder.encode([CLAUSES], prompt=prompt, max_tokens=most)


def test_bad_texts(embedder: Embedder) -> None:
    for empty in ("", " \n", "\u200b", "\0", repeat("\u0301\ufeff ", 100)):
        for prompt in (None, "query"):
            with pytest.raises(InputError, match=r"empty text, texts\[1\]"):
                embedder.encode(["cat", empty], prompt=prompt)
        with pytest.raises(InputError, match="empty document"):
            read_documents(embedder, ["cat", empty])


# ---- one pass over documents ---------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [None, "the river: "])
def test_one_pass_gives_the_vectors_of_separate_calls(
    embedder: Embedder, prompt: str | None
) -> None:
    long = repeat("cat dog ", 20)  # a passage of its own: what has no token around it gets none
    texts = [
        "the dog",
        TEXT,
        repeat("cat. ", 50),
        "\x00 a cat \x00. The dog.",
        f"\x00\n\n{long}.\n\n\x00",
    ]
    if prompt:
        embedder.model.prompts["document"] = prompt
    try:
        for save_from in (10**9, 20):
            for text, read in zip(
                texts,
                read_documents(embedder, texts, passage_tokens=30, save_from=save_from),
                strict=True,
            ):
                close(read.vector, embedder.encode_document(text))
                close(read.passages, embedder.encode_spans(text, read.spans, prompt=prompt))
                assert "".join(text[a:b] for a, b in read.spans) == text
                assert read.tokens_read == read.tokens
                assert (read.saved is None) == (save_from > read.tokens or len(read.spans) == 1)
    finally:
        embedder.model.prompts.pop("document", None)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from(SENTENCES), min_size=9, max_size=20),
    st.integers(6, 9),
    st.integers(0, 12),
)
def test_appended_text_gives_the_vectors_of_reading_the_whole(
    embedder: Embedder, parts: list[str], kept: int, letters: int
) -> None:
    whole = "".join(parts)
    begun = "".join(parts[:kept]) + "".join(parts[kept:])[:letters]  # may end inside a word
    (first,) = read_documents(embedder, [begun], passage_tokens=12, save_from=12)
    assert first.saved is not None
    (again,) = read_documents(embedder, [whole], [first.saved], passage_tokens=12, save_from=20)
    (fresh,) = read_documents(embedder, [whole], passage_tokens=12, save_from=20)
    close(again.vector, fresh.vector)
    close(again.passages, fresh.passages)
    assert np.array_equal(again.spans, fresh.spans) and again.tokens == fresh.tokens
    assert again.tokens_read < fresh.tokens_read


@pytest.mark.parametrize(
    "change", [lambda t: "A" + t, lambda t: t.replace("river", "cat", 1), lambda t: t[:40]]
)
def test_a_text_that_has_changed_before_its_end_is_read_anew(embedder: Embedder, change) -> None:
    (first,) = read_documents(embedder, [TEXT], passage_tokens=12, save_from=20)
    changed = change(TEXT)
    (again,) = read_documents(embedder, [changed], [first.saved], passage_tokens=12, save_from=20)
    assert again.tokens_read == again.tokens
    close(again.vector, embedder.encode_document(changed))
    close(again.passages, embedder.encode_spans(changed, again.spans))


def test_the_pass_also_gives_what_the_reranker_remembers(tmp_path: Path) -> None:
    embedder = Embedder(tiny_model(tmp_path))
    reranker = Reranker(embedder.model)
    assert reranker.shares(embedder)
    texts = ["the dog", TEXT, repeat("cat. ", 50), TEXT * 3]
    read = read_documents(embedder, texts, passage_tokens=30, save_from=150, remember=True)
    assert [one.saved is None for one in read] == [True, False, True, False]
    again = read_documents(
        embedder, [TEXT * 3], [read[1].saved], passage_tokens=30, save_from=150, remember=True
    )
    assert again[0].tokens_read < again[0].tokens
    expected = reranker.remember([*texts, TEXT * 3], dtype="fp32")
    for (name, _), one in zip(expected.entries(), [*read, *again], strict=True):
        right = expected[name]
        found = one.memory
        states = [embedder.model.backbone.new_state(1) for _ in range(2)]
        assert (
            isinstance(right, DocumentState)
            and isinstance(found, DocumentState)
            and found.text == right.text
        )
        for document, state in zip((right, found), states, strict=True):
            document.fill(state, 0)
        assert torch.equal(states[0].tokens, states[1].tokens) and np.array_equal(
            found.ids, right.ids
        )
        for key, tensor in states[0].tensors.items():
            # by which rounding to 8 bits may differ
            step = tensor.abs().amax(-1, keepdim=True) / 127
            assert (
                (states[1][key] - tensor).abs() <= 1.01 * step + 0.01 * tensor.abs() + 1e-5
            ).all(), key
        torch.testing.assert_close(found.vector("mean"), right.vector("mean"), atol=2e-5, rtol=1e-4)
    assert read_documents(embedder, ["cat"])[0].memory is None


def test_a_reranker_that_reads_documents_otherwise_does_not_share(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "a")
    reranker = Reranker(model)
    embedder = Embedder(model)
    assert not reranker.shares(Embedder(tiny_model(tmp_path / "b")))  # another model
    ends = tiny_model(tmp_path / "c", papers_heads=True)
    # it pools the end, and the mean would be missing
    assert not Reranker(ends).shares(Embedder(ends))
    model.prompts["document"] = "the river: "
    assert not reranker.shares(embedder)
    del model.prompts["document"]
    model.templates["document"] = Template.parse("{document}{end}")
    assert not reranker.shares(embedder)


# ---- transformers read each passage apart --------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "golden" / "transformers"
APART = repeat(
    "The cat sat on the mat. A river runs to the sea, the dog too. Dog! The mat is executed.", 5
)


@pytest.fixture(scope="module", params=["bert-mean", "bert-cls", "opt"])
def transformer(request: pytest.FixtureRequest) -> Embedder:
    loaded = Embedder.load(GOLDEN / request.param, "float32", "cpu")
    if request.param == "bert-mean":
        loaded.model.prompts["document"] = "the river "
    return loaded


@pytest.mark.parametrize("passage_tokens", [1, 12, 256])
def test_passages_have_the_vectors_of_their_texts(
    transformer: Embedder, passage_tokens: int
) -> None:
    texts = [APART, "Dog!", "The cat sat. The dog sat."]
    for text, read in zip(
        texts, read_documents(transformer, texts, passage_tokens=passage_tokens), strict=True
    ):
        edges = read.spans.flatten().tolist()
        # they tile the text
        assert edges[0] == 0 and edges[-1] == len(text) and edges[1:-1:2] == edges[2::2]
        pieces = [text[start:end] for start, end in read.spans]
        np.testing.assert_allclose(read.passages, transformer.encode_document(pieces), atol=1e-6)
        rows = list(
            transformer.render(
                pieces, prompt="document" if "document" in transformer.model.prompts else None
            )
        )
        assert max(map(len, rows)) <= transformer.model.backbone.max_tokens
        assert read.tokens == read.tokens_read == sum(map(len, rows))
        mean = sum(len(row) * vector for row, vector in zip(rows, read.passages, strict=True))
        np.testing.assert_allclose(read.vector, mean / np.linalg.norm(mean), atol=1e-6)
        if len(pieces) == 1:
            np.testing.assert_allclose(read.vector, transformer.encode_document(text), atol=1e-6)
    assert read_documents(transformer, []) == []


def test_a_sentence_longer_than_a_transformer_reads_is_an_error(transformer: Embedder) -> None:
    with pytest.raises(
        InputError,
        match=r"\d+ tokens .* (30|38|40)",
    ):
        read_documents(transformer, ["A river. " + repeat("dog ", 50)])


def test_an_index_of_a_transformer(transformer: Embedder, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", transformer) as index:
        index.add(
            [
                Document("long", APART),
                Document("river", "A river runs to the sea."),
                Document("no", repeat("dog ", 50)),
            ]
        )
        found = index.search("A river runs to the sea.", dense_weight=1.0)
    # runnel's encoder reads a long sentence in parts, a library's model does not: it is left out,
    # with a warning
    read = (
        {"river", "long", "no"}
        if isinstance(transformer.model.backbone, Encoder)
        else {"river", "long"}
    )
    assert found[0].id == "river" and {hit.id for hit in found} == read
