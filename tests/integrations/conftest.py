"""Fixtures for tests of other libraries."""

import pytest
from helpers.tiny import tiny_encoder

from runnel.models.base import Model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))
