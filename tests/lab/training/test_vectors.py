"""Training over stored vectors: a head, what it learns, how documents are read; and the layers that
read sentences.
"""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.files import write_rows
from helpers.tiny import tiny_encoder
from helpers.tiny_training import read_metrics, stopped_after

from runnel.errors import InputError
from runnel.lab.training import recipes
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.run import run_recipe
from runnel.lab.training.start import load_start
from runnel.lab.training.vector_scores import known_columns, uncalibrated
from runnel.lab.training.vectors import (
    QUESTIONS,
    LayerData,
    LayerModule,
    ReadQuestion,
    VectorItem,
    ask_elsewhere,
    calibrate,
    make_vector_item,
    mark_answers,
    read_vector_data,
    score_items,
    split_documents,
    thin,
)
from runnel.models.folder import load_model
from runnel.models.pocket.heads import VectorScore
from runnel.models.pocket.lexical import FEATURES
from runnel.models.pocket.scorer import VectorScorer
from runnel.models.recurrent.heads import HeldHead
from runnel.models.sentence_retriever import SentenceRetriever

pytestmark = pytest.mark.usefixtures("one_thread", "bare")
D, K = 16, 10


def item(seed: int, sentences: int = 30) -> VectorItem:
    make = torch.Generator().manual_seed(seed)
    query = F.normalize(torch.randn(D, generator=make), dim=0)
    vectors = F.normalize(torch.randn(sentences, D, generator=make), dim=-1)
    features = torch.rand(sentences, FEATURES, generator=make)
    place = int(torch.randint(sentences, (1,), generator=make))
    vectors[place] = query
    return make_vector_item(query, vectors, features, [(place, place + 1)])


def write_evidence(path: Path, documents: int = 40) -> None:
    """Each answer is the sentence after the one with the word of the question, so the words alone
    point to a wrong sentence.
    """
    draw = random.Random(0)
    rows = []
    for number in range(documents):
        words = ["".join(draw.choices("bcdfgklmnp", k=4)) for _ in range(K)]
        sentences = [f"The {word} runs to the sea. " for word in words]
        document = "".join(sentences)
        for place in draw.sample(range(K - 1), 2):
            start = sum(map(len, sentences[: place + 1]))
            row = {
                "id": f"{number}-{place}",
                "question": f"what of {words[place]}",
                "document": document,
                "evidence": [[start, start + len(sentences[place + 1])]],
            }
            rows.append(row)
    write_rows(path, rows)


def layer_recipe(data: Path, *changes: str):
    settings = (
        "model.new_head=false",
        "model.layers=true",
        f"model.name={data / 'layers'}",
        "train.batch=2",
        "data.held_out=8",
    )
    return recipe(data, *settings, *changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    write_evidence(folder / "evidence.jsonl")
    write_evidence(folder / "few.jsonl", documents=20)
    tiny_encoder(folder / "tiny", block=24, longest=40).save(folder / "model")
    tiny_encoder(folder / "tiny", block=24, longest=40, sentence_layers=1).save(folder / "layers")
    return folder


def recipe(data: Path, *changes: str):
    settings = (
        "train.learning_rate=1e-2",
        "train.batch=8",
        "data.held_out=16",
        "evaluation.top_k=[1]",
        "model.new_head=true",
    )
    return recipes.read(
        "evidence-vectors", changes=(f"model.name={data / 'model'}", *settings, *changes)
    )


def test_a_head_learns_the_rule_of_its_evidence_and_ranks_as_measured(data, tmp_path):
    summary = run_recipe(
        recipe(data, "train.max_steps=80"), tmp_path / "run", data=data / "evidence.jsonl"
    )
    assert summary.held_out["recall_at_1_before"] < 0.3 < 0.9 <= summary.held_out["recall_at_1"]
    assert summary.held_out["loss"] < 0.5 * summary.held_out["loss_before"]
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert (
        len(losses) == summary.steps == 80
        and np.mean(losses[-5:]) < 0.5 * losses[0]
        and summary.tokens > 0
    )
    assert not (tmp_path / "run" / "data").exists()
    retriever = SentenceRetriever.load(summary.model)
    rows = [json.loads(line) for line in (data / "evidence.jsonl").read_text().splitlines()]
    best = [retriever.retrieve(row["question"], row["document"], top_k=1)[0] for row in rows]
    right = [
        [hit.start, hit.end] == row["evidence"][0] for hit, row in zip(best, rows, strict=True)
    ]
    assert np.mean(right) > 0.85
    start, end = (load_model(folder, "float32") for folder in (data / "model", summary.model))
    assert all(
        torch.equal(a, b)
        for a, b in zip(start.backbone.parameters(), end.backbone.parameters(), strict=True)
    )
    chance = torch.tensor(
        [s.score for row in rows for s in retriever.score(row["question"], row["document"])]
    ).sigmoid()
    assert float(chance.sum()) == pytest.approx(len(rows), rel=0.4)  # calibrated


def test_a_stopped_run_does_not_read_documents_again(data, tmp_path, monkeypatch):
    made = recipe(data, "train.max_steps=2", "train.checkpoints=2")
    with stopped_after(1):
        run_recipe(made, tmp_path, data=data / "evidence.jsonl")
    read = sorted((tmp_path / "data" / "documents").iterdir())
    assert os.name == "nt" or (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert len(read) == 40
    read[0].unlink()
    texts: list[str] = []
    remember = VectorScorer.remember
    monkeypatch.setattr(
        VectorScorer, "remember", lambda self, given: remember(self, texts.extend(given) or texts)
    )
    assert run_recipe(made, tmp_path, data=data / "evidence.jsonl").steps == 2 and len(texts) == 1


def test_examples_that_cannot_be_used(data, tmp_path):
    with pytest.raises(InputError, match=r"80 examples: data\.held_out = 80"):
        run_recipe(recipe(data, "data.held_out=80"), tmp_path / "run", data=data / "evidence.jsonl")
    bad = {"id": "x", "query": "q", "document": "\u200b \u200b", "evidence": [[0, 1]]}
    with pytest.raises(InputError, match="evidence example x"):
        run_recipe(recipe(data), tmp_path / "run", data=write_rows(tmp_path / "bad.jsonl", [bad]))


def questions(documents: int) -> list[ReadQuestion]:
    return [
        ReadQuestion(f"{d}-{n}", f"text {d} {n}", None, f"{d:03}", ((0, 1),))
        for d in range(documents)
        for n in range(3)
    ]


@pytest.mark.parametrize(
    ("documents", "held_out", "sizes"), [(25, 7, (60, 9, 6)), (9, 0, (27, 0, 0)), (1, 0, (3, 0, 0))]
)
def test_no_document_is_in_two_parts(documents, held_out, sizes):
    parts = split_documents(questions(documents), held_out)
    assert tuple(map(len, parts)) == sizes
    names = [{one.document for one in part} for part in parts]
    assert sum(map(len, names)) == documents == len(set.union(*names))


def test_one_question_in_four_is_asked_to_another_document_unless_it_is_asked_of_several():
    given = questions(4)
    found = ask_elsewhere(given)
    assert [one.name for one in found] == ["0-0", "1-1", "2-2"]
    assert [one.document for one in found] == ["001", "002", "003"] and all(
        one.evidence == () for one in found
    )
    assert ask_elsewhere(questions(1)) == []
    assert ask_elsewhere([replace(one, text="summarize") for one in given]) == []


def test_long_documents_are_thinned_with_their_answers_kept():
    rng = np.random.default_rng(0)
    one = item(0, sentences=700)
    found = thin(one, rng)
    assert 300 <= len(found.vectors) == len(found.known) <= 342
    rows, before = (mark_answers(len(i.vectors), i.evidence).bool() for i in (found, one))
    assert torch.equal(found.vectors[rows], one.vectors[before]) and found.query is one.query
    best = one.known[:, 1:3].sum(1).topk(40).indices
    assert all((found.known == one.known[row]).all(1).any() for row in best)
    assert thin(item(1), rng).vectors.shape == (30, D)


def test_items_are_scored_together_as_the_head_scores_them():
    head = HeldHead(VectorScore(D))
    items = [item(0), item(1, sentences=1), item(2, sentences=7)]
    torch.nn.init.normal_(head.out.weight)
    for one, score in zip(items, score_items(head, items), strict=True):
        features = one.known[:, -FEATURES:]
        assert torch.equal(one.known, known_columns(one.query, one.vectors, features))
        torch.testing.assert_close(score, uncalibrated(head, one.query, one.vectors, features))


def test_calibration_makes_the_sum_of_probabilities_the_number_of_answers(caplog):
    head = HeldHead(VectorScore(D))
    items = [item(seed) for seed in range(60)]
    items += [replace(one, evidence=()) for one in items[:9]]
    calibrate(head, items)
    chance = torch.cat(
        [head.calibration[0] * s + head.calibration[1] for s in score_items(head, items)]
    ).sigmoid()
    assert float(chance.detach().sum()) == pytest.approx(60, rel=0.05)
    before = head.calibration.clone()
    calibrate(head, [replace(one, evidence=()) for one in items])
    assert (
        torch.equal(head.calibration, before) and "do not determine the calibration" in caplog.text
    )


def test_training_reads_as_inference_reads(data, tmp_path):
    model = load_start(layer_recipe(data))
    reader = SentenceRetriever.load(data / "layers", "float32")
    read, _, aside = read_vector_data(
        reader.scorer, read_evidence(data / "few.jsonl"), tmp_path / "documents", 0, write=True
    )
    rows = LayerData([read, aside], model)
    items = [rows[index][1] for index in range(len(rows))]
    assert sum(len(item.queries) for item in items) == 40, (
        "every question is trained on once, and only about its own document"
    )
    module = LayerModule(model.backbone, model.heads["sentences"]).eval()
    with torch.no_grad():
        _, scores = module(items)
        for item, found in zip(items, scores, strict=True):
            vectors, queries = module._vectors(item)
            assert len(item.queries) <= QUESTIONS and len(item.cu_seqlens) > 2
            torch.testing.assert_close(vectors, item.vectors, atol=2e-2, rtol=0)  # stored in 8 bits
            torch.testing.assert_close(queries, item.query_vectors, atol=1e-5, rtol=1e-4)
            head = model.heads["sentences"]
            inputs = zip(queries, item.features, strict=True)
            torch.testing.assert_close(
                found, [uncalibrated(head, query, vectors, features) for query, features in inputs]
            )


def test_layers_learn_and_all_else_stays(data, tmp_path):
    # few enough to learn by heart
    few = write_rows(tmp_path / "few.jsonl", (data / "few.jsonl").read_text().splitlines()[:12])
    summary = run_recipe(
        layer_recipe(data, "train.max_steps=40", "data.held_out=2"), tmp_path / "run", data=few
    )
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(losses) == summary.steps == 40 and sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert set(summary.held_out) == {"loss", "loss_before", "recall_at_1", "recall_at_1_before"}
    start, end = (load_model(folder, "float32") for folder in (data / "layers", summary.model))
    before = start.backbone.state_dict()
    after = end.backbone.state_dict()
    assert {
        name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])
    } == {"sentence_layers"}
    heads = start.heads.state_dict(), end.heads.state_dict()
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
