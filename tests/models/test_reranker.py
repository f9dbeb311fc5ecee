"""Reranker: remembered documents and packed batches score as whole pairs do."""

import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.texts import repeat
from helpers.tiny import tiny_model
from helpers.tiny_training import BACKBONES, training_model

from runnel import Document, Reranker
from runnel.errors import InputError, NumericalError
from runnel.models.recurrent.graph import make_pair
from runnel.text.templates import Template

DOCUMENTS = [
    repeat("The cat sat on the mat. ", 30),
    "A river runs to the sea.",
    "dog",
    repeat("the clause is executed finally ", 5),
]
QUERY = "does the river run to the sea"


@pytest.fixture(scope="module", params=[False, True], ids=["match", "papers"])
def reranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    return Reranker(tiny_model(tmp_path_factory.mktemp("tiny"), papers_heads=request.param))


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 2e-4), ("bf16", 0.1), ("int8", 0.1)])
def test_remembered_documents_score_as_whole_pairs(
    reranker: Reranker, dtype: str, tolerance: float
) -> None:
    memory = reranker.remember(DOCUMENTS, dtype=dtype)
    assert len(memory) == 4
    for query in (QUERY, "cat"):
        np.testing.assert_allclose(
            reranker.score(query, memory), reranker.score(query, DOCUMENTS), atol=tolerance
        )


def test_pairs_of_texts_are_scored_with_the_query_of_each(reranker: Reranker) -> None:
    pairs = [(query, text) for text in DOCUMENTS for query in (QUERY, "cat")]
    expected = np.stack([reranker.score(query, DOCUMENTS) for query in (QUERY, "cat")], axis=1)
    np.testing.assert_allclose(reranker.score_text_pairs(pairs), expected.ravel(), atol=2e-4)
    assert reranker.truncated == 0
    reranker.score_text_pairs(pairs, max_tokens=40)
    assert reranker.truncated == 2, "one document is cut for both queries"
    assert reranker.score_text_pairs([]).shape == (0,)


@pytest.mark.parametrize("step_tokens", [1, 3, 20, 30])
def test_remembered_documents_in_small_steps(
    reranker: Reranker, monkeypatch: pytest.MonkeyPatch, step_tokens: int
) -> None:
    memory = reranker.remember(DOCUMENTS, dtype="fp32")
    expected = reranker.score(QUERY, memory)
    monkeypatch.setattr(reranker.model, "engine", reranker.model.new_engine(step_tokens))
    seen: list[tuple[int, int | None]] = []
    np.testing.assert_allclose(
        reranker.score(QUERY, memory, progress=lambda done, total: seen.append((done, total))),
        expected,
        atol=2e-4,
    )
    first, total = seen[0]
    assert seen == [(first * (step + 1), total) for step in range(len(seen))] and seen[-1] == (
        total,
        total,
    )
    assert len(seen) == (2 if step_tokens == 30 else 4), (
        "two documents in a step of 30, else one at a time"
    )
    np.testing.assert_array_equal(reranker.score(QUERY, reranker.remember([])), [])


def test_rankings_one_after_another_share_memory_and_nothing_else(reranker: Reranker) -> None:
    """The states of a ranking are overwritten by the next one, whether that has more documents or
    fewer.
    """
    memory = reranker.remember(DOCUMENTS)
    for chosen in ("01", "0123", "1", "3210"):
        fresh = Reranker(reranker.model).score(QUERY, memory.select(chosen))
        assert np.array_equal(reranker.score(QUERY, memory.select(chosen)), fresh)


def test_what_is_remembered_must_be_numbers(reranker: Reranker) -> None:
    memory = reranker.remember(DOCUMENTS[:2], dtype="fp32")
    memory["1"].tensors["state.ssm"][:] = float("nan")
    with pytest.raises(NumericalError, match="NaN or infinity in a score"):
        reranker.score(QUERY, memory)


# the tiny model is a Mamba-2
@pytest.mark.parametrize("architecture", sorted(BACKBONES.keys() - {"mamba2"}))
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-2), ("bf16", 0.1), ("int8", 0.1)])
def test_other_backbones_remember_too(
    tmp_path: Path, architecture: str, dtype: str, tolerance: float
) -> None:
    """Their states have other parts, and rounding does other things to them: an xLSTM's m is the
    exponent of all the rest.
    """
    reranker = Reranker(training_model(tmp_path, architecture, papers_heads=True))
    memory = reranker.remember(DOCUMENTS, dtype=dtype)
    expected = reranker.score(QUERY, DOCUMENTS)
    spread = np.ptp(expected)  # what the documents make of the score
    assert spread > 1e-3
    np.testing.assert_allclose(reranker.score(QUERY, memory), expected, atol=tolerance * spread)


def test_models_and_precisions_share_a_folder(reranker: Reranker, tmp_path: Path) -> None:
    for one in (reranker, Reranker(tiny_model(tmp_path / "other", seed=5))):
        for dtype in ("fp32", "int8"):
            for _ in range(2):
                assert np.array_equal(
                    one.score(QUERY, one.remember(DOCUMENTS, tmp_path / "memory", dtype)),
                    one.score(QUERY, one.remember(DOCUMENTS, dtype=dtype)),
                )
    assert len([*(tmp_path / "memory").iterdir()]) == 4 * len(DOCUMENTS)
    sizes = {
        dtype: reranker.remember(DOCUMENTS * 4, dtype=dtype)["0"].size
        for dtype in ("fp32", "bf16", "int8")
    }
    # this tiny model has mostly short rows, which stay bf16
    assert sizes["int8"] < 0.75 * sizes["bf16"]
    assert sizes["bf16"] < 0.6 * sizes["fp32"]


def test_a_memory_on_disk_is_reopened_and_not_read_again(
    reranker: Reranker, tmp_path: Path
) -> None:
    expected = reranker.rank(QUERY, reranker.remember(DOCUMENTS, tmp_path / "memory"))
    steps: list[int] = []
    again = reranker.remember(
        DOCUMENTS, tmp_path / "memory", progress=lambda done, total: steps.append(done)
    )
    assert steps == [] and reranker.rank(QUERY, again) == expected
    longer = reranker.remember(
        ["sea", *DOCUMENTS[::-1]],
        tmp_path / "memory",
        progress=lambda done, total: steps.append(done),
    )
    assert (
        len(longer) == 5
        and 0 < steps[-1] < 5
        and reranker.rank(QUERY, longer.select("4321"))[0].score == expected[0].score
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_new_folder_of_a_memory_is_private_and_an_existing_one_keeps_its_mode(
    reranker: Reranker, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    for name, mode in (("new", 0o700), ("there", 0o750)):
        reranker.remember(DOCUMENTS, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o600}


def test_rank(reranker: Reranker) -> None:
    scores = reranker.score(QUERY, DOCUMENTS)
    hits = reranker.rank(QUERY, DOCUMENTS, top_k=3)
    assert [h.rank for h in hits] == [1, 2, 3]
    assert [int(h.id) for h in hits] == np.argsort(-scores, kind="stable")[:3].tolist()
    assert hits[0].text == DOCUMENTS[int(hits[0].id)]
    named = {f"d{i}": text for i, text in enumerate(DOCUMENTS)}
    documents = [Document(name, text) for name, text in named.items()]
    assert [h.id for h in reranker.rank(QUERY, named)] == [
        h.id for h in reranker.rank(QUERY, documents)
    ]
    assert reranker.rank(QUERY, []) == []
    assert [h.id for h in reranker.rank(QUERY, ["cat", "cat"])] == ["0", "1"], (
        "ties keep their order"
    )


def test_a_document_without_a_token_is_not_read_and_ranks_below_all_others(
    reranker: Reranker, tmp_path: Path
) -> None:
    empty = ["", "\u200b", "\0\u0301"]
    read = list[int]()
    documents = [empty[0], *DOCUMENTS, *empty[1:]]
    expected = [hit.text for hit in reranker.rank(QUERY, DOCUMENTS)]
    for given in (
        documents,
        reranker.remember(documents, dtype="fp32"),
        reranker.remember(documents, tmp_path),
    ):
        hits = reranker.rank(QUERY, given)
        assert [hit.text for hit in hits] == expected + empty
        assert hits[-3].score < min(hit.score for hit in hits[:-3]) - 100
        json.dumps([hit.score for hit in hits], allow_nan=False)
    np.testing.assert_allclose(
        reranker.score_pairs([make_pair(reranker.model, QUERY, text) for text in documents]),
        reranker.score(QUERY, documents),
        atol=2e-4,
    )
    reranker.score(QUERY, empty, progress=lambda done, total: read.append(done))
    assert not read


def test_only_documents_are_cut_and_counted_one_by_one(
    reranker: Reranker, caplog: pytest.LogCaptureFixture
) -> None:
    full = reranker.score(QUERY, DOCUMENTS[:1])
    assert reranker.truncated == 0 and not caplog.records
    cut = reranker.score(QUERY, [*DOCUMENTS[:3], DOCUMENTS[0]], max_tokens=40)
    assert reranker.truncated == 2 and "2 documents were cut to fit into 40 tokens" in caplog.text
    assert abs(float(full[0] - cut[0])) > 1e-5
    with pytest.raises(InputError, match=r"max_tokens is 3, but .* have \d+ tokens"):
        reranker.score(QUERY, DOCUMENTS[:1], max_tokens=3)


def test_bad_input(reranker: Reranker) -> None:
    for documents in (DOCUMENTS, reranker.remember(DOCUMENTS)):
        for query in (" ", "\u200b"):
            with pytest.raises(InputError, match="the query"):
                reranker.score(query, documents)
    with pytest.raises(InputError, match="dtype is 'int4'"):
        reranker.remember(DOCUMENTS, dtype="int4")


def test_a_template_may_have_the_query_first(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, papers_heads=True)
    model.templates["rerank"] = Template.parse("{begin}{query}{end}{document}{end}")
    reranker = Reranker(model)
    for document, score in zip(DOCUMENTS, reranker.score(QUERY, DOCUMENTS), strict=True):
        ids = {
            "query": model.tokenizer.encode(QUERY).ids,
            "document": model.tokenizer.encode(document).ids,
        }
        rendered = model.templates["rerank"].render(model.tokenizer, **ids)
        hidden = model.backbone(torch.from_numpy(rendered.ids).long())[0][-1:]
        np.testing.assert_allclose(float(model.heads["rerank"](hidden)[0]), score, atol=2e-4)
    with pytest.raises(InputError, match="cannot remember documents"):
        reranker.remember(DOCUMENTS)


@pytest.mark.parametrize("dtype", ["texts", "fp32", "bf16", "int8"])
def test_equal_documents_have_equal_scores_and_keep_their_order(
    reranker: Reranker, dtype: str
) -> None:
    """However they are packed: rounding depends on what is read together."""
    words = random.Random(0)
    once = [
        " ".join(
            words.choices(["the", "cat", "river", "runs", "to", "sea"], k=words.randint(1, 60))
        )
        for _ in range(60)
    ]
    documents = {str(place): text for place, text in enumerate(once + once[::-1] + once)}
    known = documents if dtype == "texts" else reranker.remember(documents, dtype=dtype)
    hits = reranker.rank(QUERY, known)
    assert len(hits) == 180
    scores = {hit.id: hit.score for hit in hits}
    assert len(set(scores.values())) == len(set(once))
    for place in range(60):
        assert scores[str(place)] == scores[str(119 - place)] == scores[str(120 + place)]
    for before, after in itertools.pairwise(hits):
        assert before.score > after.score or int(before.id) < int(after.id)
