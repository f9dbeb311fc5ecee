"""Models by object or by name."""

import numpy as np
import pytest
from helpers.tiny import tiny_encoder

from runnel import Embedder, Reranker
from runnel.errors import CheckpointError, InputError
from runnel.integrations.models import loaded, name_of


def test_an_object_is_used_and_a_name_is_loaded(tmp_path):
    embedder = Embedder(tiny_encoder(tmp_path / "tiny"))
    embedder.save(tmp_path / "saved")
    assert loaded(Embedder, embedder) is embedder and name_of(Embedder, embedder) == "tiny encoder"
    again = loaded(Embedder, tmp_path / "saved")
    np.testing.assert_allclose(again.encode("a cat"), embedder.encode("a cat"), atol=0.02)  # the tiny model is in fp32
    assert name_of(Embedder, again) == name_of(Embedder, tmp_path / "saved") == str(tmp_path / "saved")


def test_mistakes(tmp_path):
    embedder = Embedder(tiny_encoder(tmp_path / "tiny"))
    for function in (loaded, name_of):
        with pytest.raises(InputError, match="the model is of type Embedder; expected Reranker, or a name, folder or hub id"):
            function(Reranker, embedder)
    with pytest.raises(CheckpointError, match="no-such-model"):
        loaded(Reranker, "no-such-model")
