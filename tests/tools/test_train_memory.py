"""The pilots' tools on made-up documents: intervals of known ranks, what `measure` prints, and
trainings on a GPU, or where there is none on one that is not there (helpers/stand_in_gpu.py).
"""

import json
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.stand_in_gpu import DEVICE, in_a_process, stand_in_gpu
from safetensors.torch import load_file
from torch import nn

from runnel import SentenceRetriever
from runnel.models.folder import BUILT_IN
from tools.train_memory import __main__ as command
from tools.train_memory import train
from tools.train_memory.documents import Document, Question, save
from tools.train_memory.export import export
from tools.train_memory.measure import (
    METRICS,
    gain,
    interval,
    query_text,
    ranks,
    scored_ranks,
    summary,
    values_of,
)
from tools.train_memory.models import Text


def drawn_by_hand(documents, values, rounds=4_000):
    """The bootstrap over documents as a loop: the questions of drawn documents, put together."""
    rng = np.random.default_rng(9)
    names = sorted(set(documents))
    of = {name: values[[about == name for about in documents]] for name in names}
    means = [
        np.concatenate([of[names[i]] for i in rng.integers(len(names), size=len(names))]).mean()
        for _ in range(rounds)
    ]
    return np.percentile(means, [2.5, 97.5])


def test_metrics_of_known_ranks():
    values = values_of([1, 2, 5, 6, 10, 11, 0])
    assert values.mean(0)[:3].tolist() == [1 / 7, 3 / 7, 5 / 7]
    mrr = (1 + 1 / 2 + 1 / 5 + 1 / 6 + 1 / 10 + 1 / 11) / 7
    assert values.mean(0)[3] == pytest.approx(mrr)


def test_an_interval_is_drawn_by_whole_documents():
    rng = np.random.default_rng(0)
    documents = [f"d{n}" for n in rng.integers(12, size=90)]  # not in order, of unequal sizes
    of = rng.random(12)
    values = np.array([[of[int(name[1:])]] for name in documents])
    mean, low, high = interval(documents, values)[:, 0]
    assert mean == pytest.approx(values.mean())
    np.testing.assert_allclose([low, high], drawn_by_hand(documents, values), atol=0.015)
    by_question = interval([str(n) for n in range(90)], values)[:, 0]
    assert high - low > 2 * (by_question[2] - by_question[1])


def test_questions_that_all_rank_alike_have_no_width_and_one_document_no_interval():
    assert interval(["a", "b", "b"], values_of([2, 2, 2]))[:, 3].tolist() == [0.5, 0.5, 0.5]
    mean, low, high = interval(["a", "a"], values_of([1, 2]))[:, 3]
    assert mean == 0.75
    assert np.isnan([low, high]).all()


def test_the_difference_is_paired():
    documents = [str(n // 2) for n in range(60)]
    alone = np.random.default_rng(2).integers(2, 40, 60)
    # each question's reciprocal rank doubles; unpaired, the intervals of the two overlap
    difference = values_of((alone * 2).tolist())[:, 3] - values_of(alone.tolist())[:, 3]
    printed = gain(documents, (alone * 2).tolist(), alone.tolist()).partition("MRR")[2]
    mean, low, high = (float(part.strip("(),")) for part in printed.split())
    assert mean == pytest.approx(difference.mean(), abs=5e-4)
    by_hand = drawn_by_hand(documents, difference[:, None])
    np.testing.assert_allclose([low, high], by_hand, atol=0.005)
    assert high < 0
    same = gain(documents, alone.tolist(), alone.tolist())
    assert same == ", ".join(f"{metric} +0.000 (+0.000, +0.000)" for metric in METRICS)


def test_a_seed_gives_the_same_interval():
    documents = [str(n // 3) for n in range(30)]
    values = values_of(list(range(1, 31)))
    assert (interval(documents, values) == interval(documents, values)).all()
    assert (interval(documents, values) != interval(documents, values, seed=1)).any()
    assert "MRR 0.133 (" in summary(documents, list(range(1, 31)))


class Marked(nn.Module):
    """Knows which sentence answers, by its token 9, only if it reads the whole text."""

    def forward(self, texts):
        vectors = []
        for text in texts:
            read_whole = len(text.bounds) > 2
            for start in text.bounds[:-1].tolist():
                right = text.ids[start] == 9 and (read_whole or len(text.ids) == 1)
                vectors.append([1.0, 0.0] if right else [0.0, 1.0])
        return torch.tensor(vectors)


def documents_of(count):
    """Documents of six sentences, of which the third answers; BM25 ranks it second."""
    ids = np.array([7, 1, 1, 2, 9, 3, 1, 4, 1, 5, 1, 6], np.int32)
    bm25 = np.array([0, 2, 1, 0, 0, 0], np.float32)
    question = Question("q", np.array([9]), np.array([2]), bm25)
    return [Document(f"d{n}", ids, np.arange(0, 13, 2), [question] * 2) for n in range(count)]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "RUNS", tmp_path)
    monkeypatch.setattr(command, "make", lambda kind: Marked())
    return tmp_path


def test_measure_prints_intervals_and_what_the_whole_document_brings(runs, capsys):
    save(documents_of(5), runs / "few.npz")
    command.measure("memory", "few")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert all(line.endswith("; 10 questions, 5 documents") for line in lines[:6])
    (whole,) = (line for line in lines if line.startswith("whole cosine"))
    assert "first 1.000 (1.000, 1.000)" in whole
    assert "MRR 1.000 (1.000, 1.000)" in whole
    (alone,) = (line for line in lines if line.startswith("alone cosine"))
    assert "first 0.000 (0.000, 0.000)" in alone
    # all six sentences alone are alike, and ties count against the answer
    (gained,) = (line for line in lines if line.startswith("whole less alone cosine"))
    assert "first 5 +1.000 (+1.000, +1.000)" in gained
    assert gained.endswith("MRR +0.833 (+0.833, +0.833)")
    (same,) = (line for line in lines if line.startswith("whole less alone bm25"))
    assert same.endswith("MRR +0.000 (+0.000, +0.000)")


def test_files_are_measured_together(runs, capsys):
    save(documents_of(5), runs / "few.npz")
    save(documents_of(2), runs / "fewer.npz")
    command.measure("memory", "few,fewer")
    assert "; 14 questions, 5 documents" in capsys.readouterr().out  # two have names of the others


def test_measure_without_questions_says_what_it_expected(runs):
    save(documents_of(2), runs / "few.npz")
    with pytest.raises(SystemExit, match="at most 3 tokens in few"):
        command.measure("memory", "few", "3")


def test_an_exported_model_reads_as_the_trained_one(tmp_path):
    """In 8 bits; what was not trained is in pocket's folder alone."""
    (tmp_path / "pocket").symlink_to(BUILT_IN["pocket"])
    trained = train.make("replaced").to("cpu").eval()
    export(trained, tmp_path / "exported", words=0.5)
    assert (tmp_path / "exported" / "model.safetensors").stat().st_size < 7_000_000
    text = "The harbor opened in 1902. It was deep. Ships paid two crowns a night."
    retriever = SentenceRetriever.load(tmp_path / "exported", dtype="float32")
    (read,) = retriever.remember([text])
    with torch.no_grad():
        expected = trained([Text(read.ids, read.bounds)]).numpy()
    found = read.sums() / np.linalg.norm(read.sums(), axis=1, keepdims=True)
    assert (found * expected).sum(1).min() > 0.99
    # no sentence has the word of the query, so cosines alone score
    scores = [sentence.score for sentence in retriever.score("price", text)]
    np.testing.assert_allclose(
        scores, 10 * found @ retriever.scorer.read_query("price").vector, 1e-4
    )


# ---- trainings on a GPU --------------------------------------------------------------------------


def documents_to_train_on():
    """Documents of 20 sentences, longer than a passage, of two sets."""
    rng = np.random.default_rng(0)
    documents = []
    for number in range(4):
        bounds = np.arange(0, 20 * 9 + 1, 9)
        ids = rng.integers(1_100, 20_000, bounds[-1]).astype(np.int32)
        questions = [
            Question(
                f"{n}",
                rng.integers(1_100, 20_000, 7).astype(np.int32),
                np.array([3 * n, 3 * n + 1]),
                rng.normal(size=20).astype(np.float32),
            )
            for n in range(3)
        ]
        documents.append(Document(f"set{number % 2}/{number}", ids, bounds, questions))
    return documents


def test_the_parts_of_a_training_without_attention():
    """Blocks, then hidden vectors, then the ranking of sentences beside them; bf16 changes little."""
    model = train.make("replaced").to("cpu")
    with mock.patch.object(train, "_ROW", 200):
        row = next(train.rows(documents_to_train_on(), seed=0))
    with torch.no_grad():
        blocks, hidden, ranked = (train.replaced_loss(model, row, at) for at in (0.0, 0.5, 0.9))
        texts = [*row.documents, *(query_text(question) for _, question in row.questions)]
        of_ranking = train.ranking_loss(row, model(texts))
        with torch.autocast("cpu", torch.bfloat16):
            coarse = train.replaced_loss(model, row, 0.9)
    torch.testing.assert_close(ranked, hidden + of_ranking)
    assert of_ranking > 0
    assert not torch.isclose(blocks, hidden)
    assert coarse != ranked
    torch.testing.assert_close(coarse, ranked, rtol=0.02, atol=0.0)


def train_on_both(kind, folder):
    """Train on the CPU and on the GPU, each in two parts with the other's checkpoint, and measure."""
    torch.set_num_threads(1)
    documents = documents_to_train_on()
    with mock.patch.object(train, "_ROW", 200), mock.patch.object(train, "_WRITE", 2):

        def run(name, tokens, device):
            place = mock.patch.object(train, "wanted_device", lambda _: torch.device(device))
            stand_in = nullcontext() if device == "cpu" else stand_in_gpu()
            with place, stand_in:
                training = train.Training(kind, folder / name, tokens, 1e-3)
                training.run(documents)
                assert {p.device.type for p in training.model.parameters()} == {device}
                for of_weight in training.optimizer.state.values():
                    assert of_weight["exp_avg"].device.type == device
                how = scored_ranks if kind == "continued" else ranks
                return list(how(training.model, documents[:1], whole=True))

        run("cpu", 500, "cpu")
        run("gpu", 500, DEVICE)
        expect_close(folder)
        step = json.loads((folder / "gpu" / "step.json").read_text())["step"]
        assert step >= 2
        # a checkpoint of one goes on where the other is
        (folder / "cpu").rename(folder / "of cpu")
        (folder / "gpu").rename(folder / "cpu")
        (folder / "of cpu").rename(folder / "gpu")
        assert run("cpu", 1_200, "cpu") == run("gpu", 1_200, DEVICE)
        assert json.loads((folder / "cpu" / "step.json").read_text())["step"] > step
        expect_close(folder)


def expect_close(folder):
    found, expected = (load_file(folder / name / "weights.safetensors") for name in ("gpu", "cpu"))
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sentences", "replaced", "continued"])
def test_a_gpu_trains_and_measures_as_the_cpu_does(kind, tmp_path):
    in_a_process(train_on_both, kind, tmp_path)
