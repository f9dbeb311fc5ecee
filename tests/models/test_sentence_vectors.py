"""Sentence vectors: a document is read once, in passages, and answers every question and ranking as
if it were read for it.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.texts import repeat
from helpers.tiny import tiny_encoder, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError
from runnel.files import Decoded
from runnel.models.memory import Memory
from runnel.models.model import Model
from runnel.models.pocket.layout import lay_out
from runnel.models.pocket.lexical import static_bm25, word_table
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.reading import read_documents
from runnel.models.scored import Scored
from runnel.models.scoring import sentence_tokens
from runnel.search.finding import FileDocument, find
from runnel.text.documents.document import read_plain
from runnel.text.documents.html import read_html
from runnel.text.kinds import ASIDE, HEADING, INTRODUCED, LABEL, QUESTION, TEXT
from runnel.text.sentences import UNITS, read_sentences

UNSEEN = "\n\n\x00\x00\n\n"  # no tokens
SENTENCES = [
    "The cat sat on the mat. ",
    "A river runs to the sea. ",
    UNSEEN,
    "The finally clause is executed. ",
    "A dog ran. ",
]
LONG = f"The {repeat('cat dog river sea mat ', 20)}sat. "  # more tokens than can be read at once
QUERY = "the river"


@pytest.fixture(
    scope="module",
    params=[{}, {"sentence_layers": 1}, {"mixers": True}],
    ids=["one form", "layers of its own", "a state between passages"],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_encoder(tmp_path_factory.mktemp("tiny"), **request.param)


@pytest.fixture(scope="module")
def retriever(model: Model) -> SentenceRetriever:
    return SentenceRetriever(model)


def documents() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*SENTENCES, LONG]), max_size=12).map("".join)


def sums_of(model: Model, ids: np.ndarray, bounds: np.ndarray, *, sentences: bool) -> torch.Tensor:
    """The sums of hidden vectors of a document's sentences, or of its passages as texts, block by
    block, without markers.
    """
    row = lay_out(ids, bounds, model.backbone, model.tokenizer.markers())
    blocks = [row.ids.astype(np.int64)]  # with a state, all at once
    if not model.backbone.recurrent:
        blocks = np.split(blocks[0], model.backbone.block_ends(row.ids)[:-1])
    if sentences and model.backbone.own_sentences:
        read = [
            torch.from_numpy(
                model.backbone.step_forms(block, np.array([0, len(block)]), ("sentences",))
            )
            for block in blocks
        ]
    else:
        read = [model.backbone(torch.from_numpy(block))[0] for block in blocks]
    hidden = torch.cat(read)
    hidden[torch.from_numpy(np.isin(row.ids, (2, 3)))] = 0
    places = zip(row.starts, row.ends, strict=True) if sentences else pairwise(row.edges.tolist())
    return torch.stack([hidden[a:b].sum(0) for a, b in places])


@settings(max_examples=15, deadline=None)
@given(text=documents(), step=st.sampled_from([1, 7, 64, 1024]))
def test_a_sentence_is_the_sum_of_its_own_hidden_vectors(
    model: Model, text: str, step: int
) -> None:
    retriever = SentenceRetriever(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.engine, "step_tokens", step)
        (found,) = retriever.remember([text])
    assert "".join(text[a:b] for a, b in found.spans.tolist()) == text
    if not len(found.ids):
        assert not found.vectors.any()
        return
    expected = sums_of(model, found.ids, found.bounds, sentences=True)
    error = (torch.from_numpy(found.sums()) - expected).abs().amax(1)
    assert bool((error <= expected.abs().amax(1) / 127 * 0.51 + 1e-4).all())


def test_blocks_hold_every_token_once_and_whole_sentences(model: Model) -> None:
    text = "".join([*SENTENCES, LONG, *SENTENCES])
    tokens = read_sentences(text, [model.tokenizer.encode(text)])
    row = lay_out(tokens.ids, tokens.bounds, model.backbone, model.tokenizer.markers())
    assert (row.ids[row.places] == tokens.ids).all() and len(set(row.places.tolist())) == len(
        tokens.ids
    )
    ends = model.backbone.block_ends(row.ids)
    assert ends is not None
    starts = np.append(0, ends[:-1])
    assert (
        (row.ids[starts] == 2).all()
        and (row.ids[ends - 1] == 3).all()
        and (ends - starts).max() <= 22
    )
    assert np.isin(row.edges[:-1], starts).all()
    for first, last in zip(row.passages[:-1], row.passages[1:], strict=True):
        assert tokens.bounds[last] - tokens.bounds[first] <= 12 or last == first + 1, (
            "several sentences keep to a passage"
        )
    short = read_sentences(text[:48], [model.tokenizer.encode(text[:48])])
    assert 12 < len(short.ids) <= 20, "is read as one"
    row = lay_out(short.ids, short.bounds, model.backbone, model.tokenizer.markers())
    assert row.edges.tolist() == [0, len(short.ids) + 2]


@settings(max_examples=12, deadline=None)
@given(texts=st.lists(documents(), min_size=1, max_size=4))
def test_a_remembered_document_scores_as_its_text(
    retriever: SentenceRetriever, texts: list[str]
) -> None:
    remembered = list(retriever.remember(texts))
    again = [SentenceVectors.from_bytes(one.to_bytes(), one.text) for one in remembered]
    assert all(
        len(one.to_bytes()) < len(one) * (32 + 20) + 2 * len(one.ids) + 700 for one in remembered
    )
    read = list(retriever.scan(QUERY, texts))
    assert [scored.text for scored in read] == texts
    for kinds in (remembered, again):
        for one, other in zip(read, retriever.scan(QUERY, kinds), strict=True):
            assert np.array_equal(one.spans, other.spans) and np.array_equal(
                one.scores, other.scores
            )
    mixed = [texts[0], *again[1:]]
    # the first is now read in a step of its own
    for one, other in zip(retriever.scan(QUERY, mixed), read, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_what_cannot_be_done_says_so(retriever: SentenceRetriever, tmp_path: Path) -> None:
    (remembered,) = retriever.remember(["The cat sat."])
    recurrent = SentenceRetriever(tiny_model(tmp_path))
    assert not recurrent.remembers
    for call, message in (
        (lambda: retriever.score(QUERY, remembered, unit="paragraph"), "unit"),
        (lambda: retriever.score(QUERY, remembered, spans=[(0, 3)]), "spans"),
        (lambda: retriever.score(QUERY, "The cat sat.", window=8, stride=4), "window"),
        (lambda: list(retriever.scan(QUERY, remembered)), "documents are SentenceVecto"),
        (lambda: list(retriever.remember("The cat sat.")), "expected a list of texts"),
        (lambda: list(recurrent.remember(["The cat sat."])), "no parts"),
        (lambda: list(recurrent.scan(QUERY, [remembered])), "no parts"),
        (lambda: recurrent.explain(QUERY, remembered, 0), "no parts"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_units_and_spans_of_ones_own_and_long_queries(retriever: SentenceRetriever) -> None:
    text = "The cat sat. A dog ran.\n\nA river runs to the sea."
    (paragraphs,) = retriever.remember([text], unit="paragraph")
    assert [s.text for s in retriever.score(QUERY, paragraphs)] == [
        "The cat sat. A dog ran.\n\n",
        "A river runs to the sea.",
    ]
    assert [s.text for s in retriever.score(QUERY, text, spans=[(4, 7), (27, 32)])] == [
        "cat",
        "river",
    ]
    assert retriever.score(QUERY, "") == [] and list(retriever.scan(QUERY, [])) == []
    text = "".join(SENTENCES)
    long = repeat("A river runs to the sea. ", 8)
    scores = [
        [s.score for s in retriever.score(query, text)]
        for query in (long, long + "cat?", long[:25])
    ]
    assert scores[0] != scores[1] != scores[2]


@settings(max_examples=12, deadline=None)
@given(text=documents().filter(lambda text: "." in text))
def test_one_pass_gives_vectors_passages_and_sentences(
    model: Model, retriever: SentenceRetriever, text: str
) -> None:
    embedder = Embedder(model)
    (found,) = read_documents(embedder, [text], remember=True)
    np.testing.assert_allclose(found.vector, embedder.encode(text), atol=1e-5)
    assert "".join(text[a:b] for a, b in found.spans.tolist()) == text
    (remembered,) = retriever.remember([text])
    assert found.memory is not None
    again = SentenceVectors.from_bytes(found.memory.to_bytes(), text)
    assert (
        np.array_equal(again.ids, remembered.ids)
        and np.abs(again.vectors.astype(int) - remembered.vectors).max() <= 1
    )
    # with a state, only the first passage has the vector of its text alone
    spans = found.spans.tolist()[: 1 if model.backbone.recurrent else None]
    for (start, end), vector in zip(spans, found.passages, strict=False):
        if len(model.tokenizer.encode(text[start:end]).ids) <= 20 and "\x00" not in text[start:end]:
            np.testing.assert_allclose(vector, embedder.encode(text[start:end]), atol=1e-5)


def test_spans_of_a_long_text_are_means_of_their_own_tokens_and_it_is_cut_only_when_asked(
    model: Model,
) -> None:
    text = "".join(SENTENCES) * 2
    embedder = Embedder(model)
    start = text.index("finally")
    vectors = embedder.encode_spans(text, [(start, start + 7), (0, len(text))])
    assert vectors.shape == (2, 32) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(InputError, match="holds no token"):
        embedder.encode_spans(" " + text, [(0, 1)])
    whole = embedder.encode(LONG)
    cut = embedder.encode(LONG, max_tokens=12)
    assert embedder.truncated == 1 and not np.allclose(whole, cut, atol=1e-3)
    np.testing.assert_allclose(embedder.encode([LONG, "a cat", LONG])[2], whole, atol=1e-5)


DOCUMENTS = [
    "The cat sat on the mat. A dog ran.",
    "A river runs to the sea.",
    "",
    repeat("The river. ", 20),
    "A river runs to the sea.",
]
ASKED = "where does the river run"


@pytest.fixture(scope="module")
def reranker(model: Model) -> Reranker:
    return Reranker(model)


def test_a_score_is_the_weighted_sum_of_its_features(reranker: Reranker) -> None:
    model = reranker.model
    linear = model.heads["rerank"].linear
    assert model.features is not None
    table = word_table(model.tokenizer.vocabulary, model.features.idf.numpy())
    text = f"{DOCUMENTS[0]} {DOCUMENTS[1]} {LONG}" * 2
    ids = [model.tokenizer.encode(text).ids for text in (ASKED, text)]
    document = reranker.remember([text])["0"]
    assert (
        isinstance(document, SentenceVectors)
        and (document.passages is not None) == model.backbone.own_sentences
    )
    sums = sums_of(model, document.ids, document.bounds, sentences=False)
    for one in (document, SentenceVectors.from_bytes(document.to_bytes(), text)):
        error = (torch.from_numpy(one.passage_sums(model.backbone)) - sums).abs().amax(1)
        assert len(sums) > 2 and bool((error <= sums.abs().amax(1) / 127 * 3 + 1e-4).all())
    ask = model.backbone(torch.tensor([2, *ids[0], 3]))[0].mean(0)
    features = [
        float(F.cosine_similarity(sums, ask[None]).max()),
        float(F.cosine_similarity(sums.sum(0), ask, dim=0)),
        static_bm25(ids[1], ids[0], table),
    ]
    expected = linear.weight[0] @ linear.weight.new_tensor(features) + linear.bias[0]
    assert reranker.score(ASKED, [text])[0] == pytest.approx(float(expected), abs=0.01)  # 8 bits


def test_a_score_does_not_depend_on_the_other_documents_or_on_being_remembered(
    reranker: Reranker,
) -> None:
    seen: list[int] = []
    pair = reranker.score(ASKED, DOCUMENTS[:2], progress=lambda done, total: seen.append(done))
    assert seen[-1] == sum(len(reranker.model.tokenizer.encode(text)) + 2 for text in DOCUMENTS[:2])
    scores = reranker.score(ASKED, DOCUMENTS)
    np.testing.assert_allclose(pair, scores[:2], atol=0.05)
    assert scores.shape == (5,) and scores[1] == scores[4] and np.isfinite(scores).all()
    assert scores[2] == reranker.score(ASKED, ["\u200b"])[0] < scores[[0, 1, 3]].min() - 100, (
        "without a token"
    )
    memory = reranker.remember(DOCUMENTS)
    assert len(memory) == 5
    np.testing.assert_allclose(reranker.score(ASKED, memory), scores, atol=0.05)
    for text, score in zip(DOCUMENTS, scores, strict=True):
        # 8 bits of other steps
        np.testing.assert_allclose(reranker.score(ASKED, [text]), [score], atol=0.05)
    hits = reranker.rank(ASKED, memory.select(["3", "0"]))
    assert {hit.id for hit in hits} == {"3", "0"} and hits[0].score >= hits[1].score
    assert [
        hit.rank for hit in reranker.rank(ASKED, {"a": DOCUMENTS[0], "b": DOCUMENTS[1]}, 1)
    ] == [1]
    assert reranker.score(ASKED, []).shape == (0,)


def test_what_rankings_cannot_do_says_so(reranker: Reranker, tmp_path: Path) -> None:
    other = Reranker(tiny_model(tmp_path / "other"))
    own = tiny_encoder(tmp_path / "own", sentence_layers=1)
    memories = reranker.remember(DOCUMENTS[:1]), other.remember(DOCUMENTS[:1])
    sentences = Memory(
        own.backbone, {"a": next(SentenceRetriever(own).remember(["The cat sat. A dog ran."]))}
    )
    for call, message in (
        (
            lambda: Reranker(own).score(QUERY, sentences),
            "remembered for its sentences alone; let a Reranker remember it",
        ),
        (lambda: reranker.score(ASKED, DOCUMENTS, max_tokens=50), "do not give max_tokens"),
        (lambda: reranker.score(ASKED, memories[1]), "made by another model"),
        (lambda: other.score(ASKED, memories[0]), "made by another model"),
        (
            lambda: reranker.remember(DOCUMENTS[:1]).select(["7"]),
            "document '7' is not in this memory",
        ),
    ):
        with pytest.raises(InputError, match=message):
            call()


# ---- kinds of sentences go with a document from its text to its memory, whatever reads it --------

PAGE = (
    "<ul><li><a href='#a'>the cat</a><li><a href='#b'>the dog</a><li><a href='#c'>the"
    " sea</a></ul><h2 id=a>The cat sat.</h2><p>A cat ran. It sat.<h2 id=b>Is it a dog?</h2><p>It"
    " is. A dog sat.<p id=c>The sea."
)


def kinds(found: SentenceVectors) -> list[int]:
    return found.kinds.tolist()


def test_every_reader_of_a_document_keeps_its_kinds(model: Model) -> None:
    retriever = SentenceRetriever(model)
    document = read_html(Decoded(PAGE, "utf-8", None))
    expected = [ASIDE] * 3 + [HEADING, TEXT, TEXT, QUESTION, TEXT, TEXT, TEXT]
    (found,) = retriever.remember([document])
    assert kinds(found) == expected and found.text == document.text
    assert kinds(SentenceVectors.from_bytes(found.to_bytes(), found.text)) == expected
    (ranked,) = Reranker(model).remember([document]).documents.values()
    (named,) = Reranker(model).remember({"a": document}).documents.values()
    (read,) = read_documents(Embedder(model), [document], remember=True)
    assert read.memory is not None
    assert kinds(ranked) == kinds(named) == kinds(read.memory) == expected
    ((_, scored),) = find(retriever, "dog", [FileDocument("a", document)]).documents
    assert scored.first is not None and kinds(scored.first.document) == expected
    tokens = list(
        sentence_tokens(model, model.templates["document"], [document, document.text, "", document])
    )
    assert [one.kinds.tolist() == expected for one in tokens] == [True, False, False, True]
    assert tokens[0].part(2, 4).kinds.tolist() == [ASIDE, HEADING]
    for unit in UNITS:
        (one,) = sentence_tokens(model, model.templates["document"], [document], unit)
        assert one.kinds.shape == (len(one.spans),) and one.kinds.any() == (unit == "sentence")


def test_a_text_and_its_document_score_and_have_kinds_alike(model: Model, tmp_path: Path) -> None:
    text = (
        "The river\n\nA river runs to the sea. The cat sat.\n\nWhere is the dog?\n\nA dog ran. The"
        " dog sat."
    )
    document = read_plain(Decoded(text, "utf-8", None))
    for retriever in (SentenceRetriever(model), SentenceRetriever(tiny_model(tmp_path))):
        assert retriever.score("dog", document) == retriever.score("dog", text)
        assert retriever.retrieve("dog", document, spans=[(0, 9)]) == retriever.retrieve(
            "dog", text, spans=[(0, 9)]
        )
    (one,), (other,) = (
        SentenceRetriever(model).remember([content]) for content in (document, text)
    )
    assert kinds(one) == kinds(other) == [HEADING, TEXT, TEXT, QUESTION, TEXT, TEXT]
    scored = Scored(text, one.spans, np.zeros(len(one)), one.kinds)
    assert [scored.text_below(index) for index in range(6)] == [1, 1, 2, 4, 4, 5]
    assert (
        replace(scored, kinds=None).text_below(0) == 0
        and replace(scored, kinds=np.full(6, HEADING)).text_below(5) == 5
    )
    labeled = replace(scored, kinds=np.array([LABEL, INTRODUCED, INTRODUCED, TEXT, TEXT, TEXT]))
    assert [labeled.text_below(index) for index in range(3)] == [1, 1, 2]
    scores = [
        Reranker(model).score("dog", [content, "The cat sat."]).tolist()
        for content in (document, text)
    ]
    assert scores[0] == scores[1]
    with pytest.raises(InputError, match="3"):
        list(SentenceRetriever(model).remember([3]))
