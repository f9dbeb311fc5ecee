"""Several indexes searched as one: the same documents are found, and ids say where they are from."""

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Document, Embedder
from runnel.errors import InputError, StoreError
from runnel.search.index import Index
from runnel.search.joined import join, names_of

RNG = np.random.default_rng(5)
WORDS = "the a of finally clause is executed cat dog sat on mat river runs to sea".split()
TEXTS = {f"d{i}": " ".join(RNG.choice(WORDS, 12)) + ". " + " ".join(RNG.choice(WORDS, 9)) + "." for i in range(14)}
QUERY = "the river of the cat"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def make(embedder, tmp_path_factory):
    def create(documents, **settings):
        with Index.create(tmp_path_factory.mktemp("index"), embedder, **({"store": "local"} | settings)) as index:
            index.add(documents)
        return index

    return create


def documents(names, **metadata):
    return [Document(name, TEXTS[name], dict(metadata)) for name in names]


@pytest.fixture(scope="module")
def halves(make):
    names = list(TEXTS)
    return {"a": make(documents(names[:4]), remember=True), "b": make(documents(names[4:]), remember=True, store="lance")}


def own(hits):
    return [hit.id.partition(":")[2] for hit in hits]


def test_by_meaning_several_indexes_find_what_one_finds(halves, make):
    whole = make(documents(TEXTS), remember=True)
    for options in ({"dense_weight": np.inf, "rerank": 0}, {"dense_weight": np.inf}):
        one, several = (index.search(QUERY, 14, **options) for index in (whole, join(halves)))
        assert own(several) == [hit.id for hit in one] and len(one) == 14
        np.testing.assert_allclose([hit.score for hit in several], [hit.score for hit in one])
        assert [hit.sentences for hit in several] == [hit.sentences for hit in one]


def test_lists_by_words_are_merged_by_score(halves):
    hits = join(halves).search(QUERY, 14, dense_weight=0, rerank=0)
    scores: dict[str, float] = {}
    for name, index in halves.items():
        for one in index.store.lexical(QUERY, 50, []):
            scores.setdefault(f"{name}:{one.document}", one.score)
    found = [scores[hit.id] for hit in hits]
    assert len(found) == len(scores) and found == sorted(found, reverse=True)
    assert {hit.id[0] for hit in hits} == {"a", "b"}


def test_a_small_index_without_an_answer_does_not_push_in(make):
    """As it would if the lists took turns."""
    texts = ["The river runs to the sea."] * 12 + ["The finally clause is executed."] * 8
    large = make(Document(f"d{i}", f"{text} This is number {i}.") for i, text in enumerate(texts))
    small = make([Document("x", "The cat sat on the mat. A dog runs.")])
    found = [hit.id for hit in join({"small": small, "large": large}).search("river runs sea", 13, dense_weight=0, rerank=0)]
    assert len(found) == 13 and found[-1] == "small:x"


def test_the_reranker_orders_the_best_of_all_together(halves):
    hits = join(halves).search(QUERY, 14)
    relevance = [hit.explanation.relevance for hit in sorted(hits, key=lambda hit: hit.explanation.reranked.rank)]
    assert None not in relevance and relevance == sorted(relevance, reverse=True)
    assert {hit.id[0] for hit in hits} == {"a", "b"}


def test_filters_use_the_fields_that_all_have(make):
    first = make(documents(["d1", "d2"], year=2020), fields={"year": "int", "kind": "str"})
    second = make(documents(["d2", "d3"], year=2021), fields={"year": "int", "kind": "int"})
    both = join({"first": first, "second": second})
    assert {hit.id for hit in both.search(QUERY, where={"year": 2021})} == {"second:d2", "second:d3"}
    assert {hit.id for hit in both.search(QUERY)} == {"first:d1", "first:d2", "second:d2", "second:d3"}
    with pytest.raises(InputError, match="kind"):
        both.search(QUERY, where={"kind": "x"})


def test_what_the_stores_hold_is_there_under_its_new_ids(halves):
    store = join(halves).store
    assert set(store.content_hashes()) == {"a:d0", "a:d3", "b:d4", "b:d13"} | {f"a:d{i}" for i in (1, 2)} | {
        f"b:d{i}" for i in range(5, 13)
    }
    assert list(store.documents(["b:d5", "a:d1", "a:d5", "c:d1"])) == ["b:d5", "a:d1"]
    assert store.documents(["b:d5"])["b:d5"].text == TEXTS["d5"] and len(join(halves)) == 14
    assert set(store.memories(["b:d5", "a:d1", "x"])) == {"b:d5", "a:d1"}
    assert set(store.passages([("b:d5", 0), ("a:d5", 0)])) == {("b:d5", 0)}
    assert {row.document for rows in store.scan() for row in rows} == set(store.content_hashes())


def test_a_commit_of_either_index_is_seen_after_refresh(make):
    first, second = make(documents(["d1"])), make(documents(["d2"]))
    both = join({"first": first, "second": second})
    with Index.open(second.store.uri, second.embedder) as writer:
        writer.add(documents(["d3"]))
    assert len(both) == 2 and both.refresh() and len(both) == 3 and not both.refresh()
    both.close()


def test_they_cannot_be_written(halves):
    both = join(halves)
    message = "are open together, to be searched; open the index to change by itself"
    for change in (lambda: both.add(documents(["d1"])), lambda: both.delete(["a:d1"]), both.optimize, lambda: both.rollback(0)):
        with pytest.raises(StoreError, match=message):
            change()


def test_indexes_of_other_models_are_refused(halves, tmp_path):
    other = Embedder(tiny_model(tmp_path / "other", seed=7))
    with Index.create(tmp_path / "index", other, store="local") as index:
        pass
    with pytest.raises(
        StoreError, match=r"a was made with the model .*, c with .*: their scores cannot be compared; search them one"
    ):
        join({"a": halves["a"], "c": index})
    with pytest.raises(InputError, match="there is no index to search"):
        join({})


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["x/notes", "papers"], ["notes", "papers"]),
        (["x/notes", "y/notes", "z"], ["x/notes", "y/notes", "z"]),
        (["s3://bucket/a", "."], ["a", "."]),
    ],
)
def test_names_tell_indexes_apart(places, names):
    assert names_of(places) == names
