"""Query likelihood: scores are a plain sum of log probabilities, for whole pairs and for remembered
documents.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.byte_tokenizer import Bytes

from runnel import Reranker
from runnel.errors import CheckpointError, InputError, StateError
from runnel.models.recurrent.language_model import LanguageModel

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ["mamba1-tiny-hf", "mamba2-tiny-hf", "rwkv7-tiny-fla", "xlstm-tiny-hf"]
DOCUMENTS = ["The mill stands at the river.", "A dog.", "The mill stands at the river. " * 20]
QUERY = "Where is the mill?"


@pytest.fixture
def tokenizer(monkeypatch):
    found = Bytes()
    monkeypatch.setattr(
        "runnel.models.recurrent.language_model.load_tokenizer", lambda folder, backbone: found
    )
    return found


def plain_scores(name: str, dtype: str, begin: list[int]) -> list[float]:
    """The mean log probability, from the logits of the whole text, token by token."""
    model = LanguageModel.load(GOLDEN / name, dtype=dtype, device="cpu")
    scores = []
    for document in DOCUMENTS:
        ids = begin + list(f"{document}\n\nQuestion: {QUERY}".encode())
        logits = model.logits(torch.tensor(ids))[0].double()[:, :256]
        places = range(len(ids) - len(QUERY) - 1, len(ids))  # the space belongs to the query
        probable = [logits[place - 1].log_softmax(-1)[ids[place]].item() for place in places]
        scores.append(sum(probable) / len(probable))
    return scores


@pytest.mark.parametrize("begin", [None, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_a_plain_loop(tokenizer, tmp_path, name, begin):
    tokenizer.begin_id = begin
    expected = plain_scores(name, "float64", [] if begin is None else [begin])
    reranker = Reranker.load(GOLDEN / name, "float64", "cpu", head="likelihood")
    assert len(set(expected)) == len(DOCUMENTS) and max(expected) < 0
    np.testing.assert_allclose(reranker.score(QUERY, DOCUMENTS), expected, atol=1e-5)
    memory = reranker.remember(DOCUMENTS, tmp_path / "memory", dtype="fp32")
    np.testing.assert_allclose(reranker.score(QUERY, memory), expected, atol=1e-4)
    again = Reranker.load(GOLDEN / name, "float64", "cpu", head="likelihood")
    again.model.engine = again.model.new_engine(step_tokens=5)
    np.testing.assert_allclose(again.score(QUERY, memory), expected, atol=1e-4)
    assert [hit.id for hit in reranker.rank(QUERY, memory)] == [
        str(place) for place in np.argsort(-np.array(expected))
    ]


def test_a_document_without_a_token_is_last(tokenizer):
    reranker = Reranker.load(GOLDEN / "mamba2-tiny-hf", head="likelihood")
    with_empty = ["A dog.", ""]
    assert reranker.score(QUERY, with_empty)[1] == -700
    assert reranker.score(QUERY, reranker.remember(with_empty))[1] == -700


def test_states_of_another_head_are_refused(tokenizer):
    reranker = Reranker.load(GOLDEN / "mamba2-tiny-hf", head="likelihood")
    memory = reranker.remember(DOCUMENTS[:1])
    kept = memory["0"].tensors
    kept["mean"] = kept.pop("last")
    with pytest.raises(StateError, match="another kind of model"):
        reranker.score(QUERY, memory)


@pytest.mark.parametrize(
    ("model", "options", "error", "named"),
    [
        (GOLDEN / "transformers" / "bert-mean", {}, InputError, "transformer"),
        ("pocket-mamba2", {}, CheckpointError, "generate"),
        (GOLDEN / "mamba2-tiny-hf", {"template": "rankmamba"}, InputError, "'rankmamba'"),
        ("pocket", {"head": "odds"}, InputError, "'odds'"),
    ],
)
def test_what_cannot_give_a_likelihood(tokenizer, model, options, error, named):
    with pytest.raises(error, match=named):
        Reranker.load(model, **{"head": "likelihood"} | options)
