"""Models in mteb: its own protocols, its small tasks with local data, and the instructions of paper
D.
"""

from types import SimpleNamespace

import mteb
import numpy as np
import pytest
from helpers.tiny import tiny_model
from helpers.toy import Toy, ToyConfig
from mteb.mocks.mock_tasks import bitext_mining, reranking, retrieval, sts
from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol
from mteb.types import PromptType

from runnel import Embedder, Reranker
from runnel.errors import InputError
from runnel.integrations.mteb import MtebEncoder, MtebIndex, MtebReranker, instructions
from runnel.lab.evaluation import mteb as evaluate_mteb

TEMPLATE = "Instruction: {instruction}\nQuery: "


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = tiny_model(
        tmp_path_factory.mktemp("tiny"), papers_heads=True, backbone=Toy(ToyConfig(128, 32))
    )
    model.prompts.clear()
    return model


def score(model, task, **options):
    (result,) = mteb.evaluate(
        model, task, cache=None, co2_tracker=False, show_progress_bar=False, **options
    ).task_results
    return result


def described(name, kind, prompt=None):
    return SimpleNamespace(name=name, type=kind, prompt=prompt)


def test_each_is_what_mteb_calls_it(model, tmp_path):
    encoder = MtebEncoder(Embedder(model))
    reranker = MtebReranker(Reranker(model))
    index = MtebIndex(Embedder(model), tmp_path)
    assert isinstance(encoder, EncoderProtocol) and not isinstance(encoder, SearchProtocol)
    assert isinstance(reranker, CrossEncoderProtocol) and not isinstance(reranker, EncoderProtocol)
    assert isinstance(index, SearchProtocol) and not isinstance(index, EncoderProtocol)
    facts = MtebEncoder(
        Embedder(model), name="some/tiny", template=TEMPLATE, max_tokens=64
    ).mteb_model_meta
    assert (
        facts.name == "runnel/tiny"
        and facts.embed_dim == Embedder(model).dimension
        and facts.max_tokens == 64
    )
    assert (
        facts.n_parameters == sum(p.numel() for p in model.backbone.parameters())
        and facts.use_instructions
    )
    assert facts.memory_usage_mb == facts.n_parameters * 4 / 2**20, "the tiny model is in fp32"
    revisions = {one.mteb_model_meta.revision for one in (encoder, reranker, index)} | {
        facts.revision
    }
    assert len(revisions) == 4, "mteb would take the results of one for those of another"


def test_vectors_are_those_of_the_embedder(model):
    embedder = Embedder(model)
    batches = [{"text": ["a red cat", " "]}, {"text": ["a blue dog"]}]
    vectors = MtebEncoder(embedder).encode(batches, task_metadata=described("X", "STS"))
    np.testing.assert_allclose(
        vectors[[0, 2]], embedder.encode(["a red cat", "a blue dog"]), atol=1e-6
    )
    assert not vectors[1].any()
    vectors = MtebEncoder(embedder, template=TEMPLATE).encode(
        batches[1:], task_metadata=described("X", "STS")
    )
    prompt = "Instruction: Retrieve semantically similar text.\nQuery: "
    np.testing.assert_allclose(vectors, embedder.encode(["a blue dog"], prompt=prompt), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "kind", "before"),
    [
        (
            described("SciFact", "Retrieval"),
            PromptType.query,
            "Given a scientific claim, retrieve documents that support",
        ),
        (described("SciFact", "Retrieval"), PromptType.document, None),
        (described("SciDocsRR", "Reranking"), PromptType.document, None),
        (described("STSBenchmark", "STS"), None, "Retrieve semantically similar text."),
        (described("SomeBitext", "BitextMining"), None, "Retrieve parallel sentences."),
        (described("New", "Classification", prompt="Sort these."), None, "Sort these."),
        (described("New", "Retrieval", prompt={"query": "Find it."}), PromptType.query, "Find it."),
        (
            described("Asymmetric", "STS"),
            PromptType.document,
            "Retrieve semantically similar text.",
        ),
    ],
)
def test_instructions_come_before_queries_of_retrieval_and_all_texts_of_other_tasks(
    model, task, kind, before
):
    found = MtebEncoder(Embedder(model), template=TEMPLATE).prompt_of(task, kind)
    assert (
        (found is None)
        if before is None
        else found.startswith(f"Instruction: {before}") and found.endswith("\nQuery: ")
    )
    assert MtebEncoder(Embedder(model)).prompt_of(task, kind) is None  # a model without prompts


@pytest.mark.slow
def test_paper_d_has_an_instruction_for_each_english_task(model):
    names = {task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)}
    assert set(instructions()) - names == {"STS", "Summarization", "BitextMining"}
    tasks = evaluate_mteb.find_tasks("eng-v2")
    own = {
        task.metadata.name for task in tasks if task.metadata.type not in ("STS", "Summarization")
    }
    assert len(tasks) == 41 and own <= set(instructions())
    assert [
        len(evaluate_mteb.find_tasks(name)) for name in ("eng-v1", "multilingual-v2", "SciFact")
    ] == [56, 131, 1]
    with pytest.raises(InputError, match=r"unknown task 'SciFcat'; did you mean SciFact"):
        evaluate_mteb.find_tasks("SciFcat")


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # in mteb
def test_an_embedder_does_tasks_of_all_types(model):
    tasks = (
        retrieval.MockRetrievalTask,
        reranking.MockRerankingTask,
        sts.MockSTSTask,
        bitext_mining.MockBitextMiningTask,
    )
    assert all(
        np.isfinite(score(MtebEncoder(Embedder(model), template=TEMPLATE), task()).get_score())
        for task in tasks
    )


def test_a_reranker_and_an_index_search(model, tmp_path):
    reranker = MtebReranker(Reranker(model))
    batches = [{"text": ["cat", "cat", "dog"]}], [{"text": ["a red cat", "a dog", "a red cat"]}]
    scores = reranker.predict(*batches)
    expected = [
        Reranker(model).score(q, [d])[0]
        for q, d in (("cat", "a red cat"), ("cat", "a dog"), ("dog", "a red cat"))
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert np.isfinite(score(reranker, reranking.MockRerankingTask()).get_score())
    index = MtebIndex(Embedder(model), tmp_path / "indexes", options={"rerank": 0})
    assert score(index, retrieval.MockRetrievalTask()).get_score() > 0
    names = {path.name for path in (tmp_path / "indexes").iterdir()}
    assert names == {"MockRetrievalTask-default-test", "MockRetrievalTask-default-val"}
    with pytest.raises(InputError, match="this task has candidates"):
        score(index, reranking.MockRerankingTask())
