"""The stages of a search: what the reranker changes, what is read for sentences, what is
remembered, what each costs.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.reading import count_tokens
from helpers.tiny import judging_encoder, tiny_encoder, tiny_model, write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel import Document, Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError, StoreError
from runnel.models.memory import Memory
from runnel.models.recurrent.memory import DocumentState
from runnel.request import TokenCount, growing
from runnel.search import encoding
from runnel.search.check import check_store
from runnel.search.encoding import new_settings
from runnel.search.index import Index
from runnel.search.pipeline import _with_first_stage, fuse
from runnel.text.templates import Template

RNG = np.random.default_rng(3)
WORDS = "the a of finally clause is executed cat dog sat on mat river runs to sea".split()
TEXTS = {
    f"d{i}": " ".join(RNG.choice(WORDS, 12)) + ". " + " ".join(RNG.choice(WORDS, 9)) + "."
    for i in range(12)
}
QUERY = "the river of the cat"


def documents(texts):
    return [Document(name, text) for name, text in texts.items()]


def filled(place, embedder, texts=TEXTS, **options):
    index = Index.create(place, embedder, **options)
    index.add(documents(texts))
    return index


@pytest.fixture(scope="module")
def index(embedder, tmp_path_factory):
    with filled(tmp_path_factory.mktemp("index"), embedder, remember=True) as made:
        yield made


@pytest.fixture(scope="module")
def plain(embedder, tmp_path_factory):
    with filled(tmp_path_factory.mktemp("plain"), embedder) as made:
        yield made


def test_the_rerankers_order_is_a_third_list(plain):
    vector = plain.embedder.encode_query([QUERY])[0]
    lists = [
        [f.document for f in found]
        for found in (plain.store.nearest(vector, 200, []), plain.store.lexical(QUERY, 200, []))
    ]
    lists = [list(dict.fromkeys(names)) for names in lists]
    first = [hit.id for hit in plain.search(QUERY, top_k=12)]
    # without memory nothing is reranked unless asked for
    assert first == [name for name, _ in fuse(lists, (0.2, 1))]

    hits = plain.search(QUERY, top_k=12, rerank=5)
    scores = Reranker(plain.embedder.model).score(QUERY, [TEXTS[name] for name in first[:5]])
    expected = fuse([*lists, [first[i] for i in np.argsort(-scores, kind="stable")]], (0.2, 1, 1))
    assert [(hit.id, hit.score) for hit in hits] == expected
    assert {hit.id for hit in hits[:5]} == set(first[:5]) and [hit.id for hit in hits[5:]] == first[
        5:
    ]
    # and no others
    assert [hit.id for hit in plain.search(QUERY, top_k=12, dense_weight=0)] == lists[1]
    assert [hit.id for hit in plain.search(QUERY, top_k=12, dense_weight=math.inf)] == lists[0]
    assert plain.search("zebra", dense_weight=0) == []


def test_the_parts_of_an_explanation_add_up_to_the_score(index, plain):
    reranked = plain.search(QUERY, top_k=12, rerank=5)
    for hit in [
        *reranked,
        *index.search(QUERY),
        *plain.search(QUERY),
        *plain.search(QUERY, dense_weight=math.inf),
    ]:
        why = hit.explanation
        assert why.meaning.score + why.words.score + why.reranked.score == pytest.approx(hit.score)
        for part, weight in ((why.meaning, (0.2, 1.0)), (why.words, (1,)), (why.reranked, (1,))):
            assert part.score in (
                0 if part.rank is None else weight / (60 + part.rank) for weight in weight
            )
        assert (why.relevance is None) == (why.reranked.rank is None)
    assert [hit.explanation.reranked.rank is not None for hit in reranked] == [True] * 5 + [
        False
    ] * 7
    by_relevance = sorted((hit.explanation for hit in reranked[:5]), key=lambda why: -why.relevance)
    assert [why.reranked.rank for why in by_relevance] == [1, 2, 3, 4, 5]


def test_remembered_documents_rank_as_whole_pairs_do(index, plain, monkeypatch):
    timings = {}
    with monkeypatch.context() as patch:  # no text is read but the query
        read = count_tokens(patch)
        index.search(QUERY, sentences=0)
        assert 0 < max(read) < 20  # a document has more
    remembered = index.search(QUERY, top_k=12, timings=timings)
    assert list(timings) == ["query", "dense", "lexical", "fetch", "rerank", "sentences"]
    assert index.search(QUERY, top_k=12, rerank=0) != remembered
    pieces = index.store.memories(["d3", "nothing", "d1"])
    assert set(pieces) == {"d1", "d3"} and plain.store.memories(["d3"]) == {}
    from_memory = index._pipeline._rerank(
        QUERY, list(index.store.documents(list(TEXTS)).values()), TokenCount(None)
    )
    scores = dict(
        zip(
            TEXTS,
            Reranker(index.embedder.model).score(QUERY, list(TEXTS.values())).tolist(),
            strict=True,
        )
    )
    assert from_memory == pytest.approx(scores, abs=2e-2)  # int8
    assert max(scores.values()) - min(scores.values()) > 0.1


def test_the_total_of_a_progress_is_of_all_documents_taken_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 2)
    steps: list[tuple[int, int]] = []
    with Index.create(tmp_path / "index") as index:
        # before the first token, a call only lets its caller end it
        progress = growing(lambda done, total: steps.append((done, total)), lambda: None)
        changes = index.add(documents(TEXTS), progress=progress)
    assert steps == sorted(steps) and all(done <= total for done, total in steps)
    assert steps[-1] == (changes.tokens_read, changes.tokens_read)
    assert len({total for _, total in steps}) == -(-len(TEXTS) // 2)


class Ended(Exception):
    pass


@pytest.mark.parametrize("kind", ["pocket", "recurrent", "transformer"])
def test_an_update_ends_while_a_long_document_is_still_split(tmp_path, kind):
    if kind == "transformer":
        write_transformer(tmp_path / "model", "bert", max_position_embeddings=64)
        write_tokenizer(tmp_path / "model")
        embedder = Embedder.load(str(tmp_path / "model"), pooling="mean")
    elif kind == "pocket":
        embedder = Embedder(judging_encoder(tmp_path))
    else:
        embedder = Embedder(tiny_model(tmp_path / "model"))
    calls = []

    def progress(done: int, total: int | None) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise Ended

    with Index.create(tmp_path / "index", embedder) as index:
        with pytest.raises(Ended):
            index.add([Document("long", "The dog sat. " * 1000)], progress=progress)
        assert calls == [0, 0, 0] and len(index) == 0


def test_remembered_documents_are_read_once_unless_the_reranker_reads_them_otherwise(
    embedder, tmp_path
):
    steps: list[int] = []
    with Index.create(tmp_path / "index", embedder, remember=True) as index:
        changes = index.add(documents(TEXTS), progress=lambda done, total: steps.append(done))
        assert steps[-1] == changes.tokens_read > 0
    model = tiny_model(tmp_path / "tiny")
    model.templates["document"] = Template.parse("{document}{end}")
    with filled(tmp_path / "other", Embedder(model), remember=True) as index:
        pieces = index.store.memories(list(TEXTS)).items()
        memory = Memory(
            model.backbone,
            {name: DocumentState.from_bytes(piece, TEXTS[name]) for name, piece in pieces},
        )
        expected = Reranker(model).score(QUERY, list(TEXTS.values()))
        np.testing.assert_allclose(Reranker(model).score(QUERY, memory), expected, atol=2e-2)


def test_sentences_are_those_of_one_pass_over_each_of_the_best_documents(plain):
    hits = plain.search(QUERY, top_k=4, read=2, sentences=1)
    retriever = SentenceRetriever(plain.embedder.model)
    for hit in hits[:2]:
        (best,) = retriever.retrieve(QUERY, hit.text, 1)
        (shown,) = hit.sentences
        assert (shown.text, shown.start) == (best.text, best.start)
    assert [hit.sentences for hit in hits[2:]] == [(), ()]
    assert all(hit.sentences == () for hit in plain.search(QUERY, read=0))
    # each must be read
    assert [bool(hit.sentences) for hit in plain.search(QUERY, top_k=12)] == [True] * 5 + [
        False
    ] * 7


def test_a_model_that_cannot_rerank_is_told(tmp_path):
    model = tiny_model(tmp_path / "tiny")
    del model.heads["rerank"]
    embedder = Embedder(model)
    with pytest.raises(InputError, match="cannot remember documents"):
        Index.create(tmp_path / "index", embedder, remember=True)
    with Index.create(tmp_path / "index", embedder) as index:
        index.add([Document("a", "The cat sat.")])
        assert index.search("cat")[0].id == "a"
        with pytest.raises(InputError, match="no rerank head"):
            index.search("cat", rerank=3)


# ---- models that remember the sentences of documents: no question reads a document again ---------


def text_of(sentences: int) -> str:
    return " ".join(" ".join(RNG.choice(WORDS, 7)).capitalize() + "." for _ in range(sentences))


LONGER = {f"d{i}": text_of(count) for i, count in enumerate((1, 2, 3, 5, 9, 14, 1, 30))}


@pytest.fixture(scope="module", params=[0, 1], ids=["one form", "layers of its own"])
def encoder(request, tmp_path_factory):
    return Embedder(tiny_encoder(tmp_path_factory.mktemp("tiny"), sentence_layers=request.param))


@pytest.fixture(params=["lance", "qdrant"])
def remembering(request, place_of, encoder):
    store = place_of(request.param).create(new_settings(encoder))
    with Index(store, encoder) as made:
        made.add(documents(LONGER))
        yield made


@pytest.fixture
def local(encoder, tmp_path):
    with filled(tmp_path / "local", encoder, LONGER) as made:
        yield made


def shown(hits):
    return [
        (hit.id, [(s.text, s.start, s.end, s.index, round(s.score, 4)) for s in hit.sentences])
        for hit in hits
    ]


def test_sentences_are_remembered_without_being_asked_for(encoder, local, tmp_path):
    recurrent = new_settings(Embedder(tiny_model(tmp_path / "tiny")))
    assert (recurrent.passage_tokens, recurrent.remember) == (256, False)
    settings = new_settings(encoder)
    assert (settings.passage_tokens, settings.remember) == (12, True)
    assert new_settings(encoder, None, 12, True) == settings  # these say what is so anyhow
    assert set(local.store.memories(list(LONGER))) == set(LONGER)
    assert local.check() == []
    with pytest.raises(InputError, match="passage_tokens=20"):
        new_settings(encoder, passage_tokens=20)


def test_sentences_from_memory_are_those_found_by_reading(remembering, encoder, monkeypatch):
    with monkeypatch.context() as patch:  # no document is read to search
        read = count_tokens(patch)
        assert remembering.search(QUERY, top_k=20, rerank=8)[0].sentences
        assert set(read) == {len(encoder.model.tokenizer.encode(QUERY).ids) + 2}
    hits = remembering.search(QUERY, top_k=20, rerank=0)
    # of every document, not of five
    assert len(hits) == len(LONGER) and all(hit.sentences for hit in hits)
    retriever = SentenceRetriever(encoder.model)
    for hit in hits:
        scores = {s.start: s.score for s in retriever.score(QUERY, hit.text)}
        best = sorted(scores.values(), reverse=True)
        # other steps, other rounding
        assert all(abs(scores[s.start] - s.score) < 0.05 for s in hit.sentences)
        found = [s.score for s in hit.sentences]
        assert found == sorted(found, reverse=True)
        assert found[0] == pytest.approx(best[0], abs=0.05)
    assert [bool(hit.sentences) for hit in remembering.search(QUERY, top_k=3, read=1)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("dense_weight", [1.0, 0.0])
def test_relevance_adds_the_cosine_and_the_share_of_words_to_the_rerankers_score(
    remembering, encoder, dense_weight
):
    store = remembering.store
    reranker = Reranker(encoder.model)
    vector = encoder.encode_query([QUERY])[0]
    # Passages come best first, so the last one that is taken for a document is its best.
    dense = (
        {one.document: one.score for one in reversed(store.nearest(vector, 200, []))}
        if dense_weight
        else {}
    )
    lexical = {one.document: one.score for one in reversed(store.lexical(QUERY, 200, []))}
    scores = dict(
        zip(LONGER, reranker.score(QUERY, reranker.remember(LONGER)).tolist(), strict=True)
    )
    expected = {
        name: score + 16 * dense.get(name, 0.0) + 4 * lexical.get(name, 0.0) / max(lexical.values())
        for name, score in scores.items()
        if name in dense or name in lexical
    }
    hits = remembering.search(QUERY, top_k=20, dense_weight=dense_weight)
    relevance = {hit.id: hit.explanation.relevance for hit in hits}
    assert relevance == pytest.approx(expected, abs=0.05)  # other steps, other rounding
    by_rank = [
        hit.explanation.relevance
        for hit in sorted(hits, key=lambda hit: hit.explanation.reranked.rank)
    ]
    assert by_rank == sorted(by_rank, reverse=True) and len(by_rank) == len(hits)
    assert len(set(lexical.values())) > 2 and len(set(np.round(list(scores.values()), 2))) > 2
    # Documents beyond a list have its lowest cosine and no words.
    relevance = _with_first_stage(
        {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": -0.1}, {"a": 5.0, "x": 10.0}
    )
    assert relevance == {"a": 1 + 16 * 0.9 + 4 * 0.5, "b": 2 - 16 * 0.1, "c": 3 - 16 * 0.1}
    assert (
        _with_first_stage({"a": 1.0}, {}, {}) == {"a": 1.0}
        and _with_first_stage({}, {"a": 1.0}, {"a": 1.0}) == {}
    )


def test_a_model_with_other_layers_for_sentences_alone_is_another_model(tmp_path):
    encoder = Embedder(tiny_encoder(tmp_path / "tiny", sentence_layers=1))
    Index.create(tmp_path / "made", encoder).close()
    vectors = encoder.encode(QUERY)
    with torch.no_grad():
        for block in encoder.model.backbone.sentence_layers:
            for parameter in block.parameters():
                parameter.add_(torch.randn(parameter.shape))
    encoder.model.save(tmp_path / "trained")
    trained = Embedder.load(tmp_path / "trained", "float32")
    trained.model.source = "tiny encoder"
    # the products of loaded weights may be rounded otherwise: they lie elsewhere in memory
    assert np.abs(trained.encode(QUERY) - vectors).max() < 1e-6
    with pytest.raises(StoreError, match=r"'tiny encoder'.*'tiny encoder'"):
        Index.open(tmp_path / "made", trained)


def test_documents_with_and_without_memory_side_by_side(local, monkeypatch, encoder):
    whole = shown(local.search(QUERY, top_k=20))
    memories = local.store.memories
    monkeypatch.setattr(
        local.store,
        "memories",
        lambda ids: memories([name for name in ids if name not in ("d1", "d4")]),
    )
    read = count_tokens(monkeypatch)
    mixed = shown(local.search(QUERY, top_k=20))
    assert [(name, [s[0] for s in found]) for name, found in mixed] == [
        (name, [s[0] for s in found]) for name, found in whole
    ]
    # two documents, to rerank and for sentences
    assert len([count for count in read if count > len(QUERY.split()) + 2]) == 4


def test_a_damaged_memory_is_damage_of_the_index(remembering):
    rows = remembering.store.documents(["d5"])
    passages = [row for rows in remembering.store.scan() for row in rows if row.document == "d5"]
    memories = remembering.store.memories(["d4", "d5"])
    own = memories["d5"]
    other = memories["d4"]
    # flipped, cut, of another text
    for damaged in (own[:-5] + bytes([own[-5] ^ 16]) + own[-4:], own[:40], other):
        remembering.store.commit([replace(rows["d5"], memory=damaged)], passages, [])
        for rerank in (0, 8):
            with pytest.raises(StoreError, match="is damaged: document 'd5'"):
                remembering.search(QUERY, top_k=20, rerank=rerank)
        [found] = check_store(remembering.store)
        assert found.document == "d5" and "what is remembered of it is damaged" in found.reason


def test_a_document_that_is_replaced_during_a_search_is_read(local, monkeypatch):
    """Where reads are live (Qdrant), texts and memories may be of two versions."""
    documents = local.store.documents
    old = {
        name: replace(row, text="The cat sat. " + row.text)
        for name, row in documents(["d2"]).items()
    }
    answers = iter([old, {}])
    monkeypatch.setattr(
        local.store, "documents", lambda ids, **more: documents(ids, **more) | next(answers)
    )
    hits = {hit.id: hit for hit in local.search(QUERY, top_k=20, rerank=0, sentences=20)}
    assert next(answers, None) is None and hits["d2"].text == old["d2"].text
    in_order = sorted(hits["d2"].sentences, key=lambda sentence: sentence.start)
    assert "".join(sentence.text for sentence in in_order) == old["d2"].text


def test_text_that_goes_on_is_remembered_anew(remembering):
    before = remembering.store.memories(["d2", "d3"])
    longer = {"d2": LONGER["d2"] + " The river of the cat runs to the sea."}
    changes = remembering.add(documents(LONGER | longer))
    assert changes.updated == ["d2"] and changes.tokens_read == changes.tokens
    after = remembering.store.memories(["d2", "d3"])
    assert after["d3"] == before["d3"] and after["d2"] != before["d2"]
    found = dict(shown(remembering.search(QUERY, top_k=20, sentences=9)))
    assert "The river of the cat runs to the sea." in [text for text, *_ in found["d2"]]
    assert remembering.check() == []


# ---- copies --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pocket():
    return Embedder.load("pocket")


GATE = "The porter lives here.\n\nThe gate code is changed every Monday.\n\n"


def test_documents_are_in_the_order_of_their_best_sentences(pocket, tmp_path):
    question = "in how many days may a parcel be returned"
    texts = {
        "answer": "The office is closed on Sunday. " * 9
        + "A parcel may be returned in thirty days.",
        "words": "A parcel, returned parcels, many days.",
        "bees": "Bees live in the garden for many days.",
    }
    words_alone = {"dense_weight": 0, "rerank": 0}
    with filled(tmp_path / "index", pocket, texts) as index:
        hits = index.search(question, **words_alone)
        by_score = index.search(question, sentences=0, **words_alone)
    best = [hit.sentences[0].score for hit in hits]
    assert best == sorted(best, reverse=True) and hits[0].id == "answer"
    assert by_score[0].id == "words"
    assert [hit.rank for hit in hits] == [1, 2, 3]
    scores = {hit.id: hit.score for hit in hits}
    assert [scores[hit.id] for hit in by_score] == sorted(scores.values(), reverse=True)


def test_documents_that_say_the_same_are_one_result(pocket, tmp_path):
    """Equal texts, and equal sentences between equal neighbors; before the number is cut."""
    texts = {f"copy{i}": GATE + "Ask him." for i in range(250)} | {
        "longer": GATE + "Ask him.\n\nHe sleeps at nine. Then nobody opens.",
        "other": "The list of gate codes is in the grey safe.",
        "third": "A gate needs a code.",
    }
    with filled(tmp_path / "index", pocket, texts) as index:
        hits = index.search("gate code", 4)
        (first,) = [hit for hit in hits if hit.id not in ("other", "third")]
        others = [hit for hit in hits if hit is not first]
        files = {first.id, *(place.file for place in first.also)}
        assert files == {"longer", *(f"copy{i}" for i in range(250))}
        assert len(first.also) == 250 and not any(hit.also for hit in others)
        assert all(place.text.strip() == GATE.split("\n\n")[1] for place in first.also)
        assert [hit.rank for hit in hits] == [1, 2, 3]
        assert len(first.as_json()["also"]) == 250
        unread = index.search("gate code", 3, sentences=0)  # only equal texts are known
        assert len({hit.text for hit in unread}) == 3
        assert [len(hit.also) for hit in unread if hit.id.startswith("copy")] == [249]
        assert len(index.search("gate code", 10)) == 3


def test_copies_in_another_form_are_one_result(pocket, tmp_path):
    said = 'Look here. The porter said: "The gate code is 7741." Ask him.'
    forms = {
        "plain": said,
        "capitals": said.upper(),
        "curly": said.replace(' "', " \u201c").replace('."', ".\u201d"),
        "emphasis": said.replace("gate code", "**gate code**").replace("7741", "`7741`"),
        "wrapped": said.replace(" is ", "\nis "),
        "quoted": "> " + said.replace(" The porter", "\n> The porter"),
        "other": said.replace("7741", "7742"),
    }
    with filled(tmp_path / "index", pocket, forms) as index:
        hits = index.search("gate code", 5)
        groups = {frozenset([hit.id, *(place.file for place in hit.also)]) for hit in hits}
        assert groups == {frozenset(["other"]), frozenset(forms) - {"other"}}


def test_different_texts_that_share_a_sentence_are_two_results(pocket, tmp_path):
    said = "Look here. The gate code is 7741. "
    texts = {"a": said + "Ask the porter.", "b": said + "Ask the cook."}
    with filled(tmp_path / "index", pocket, texts) as index:
        assert len(index.search("gate code", 5)) == 2
