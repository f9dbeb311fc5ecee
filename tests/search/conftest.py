"""Fixtures for tests of the index."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.local_qdrant import URI, LocalQdrant, local_qdrant
from helpers.s3_server import S3Server
from helpers.stored_documents import Place
from helpers.tiny import tiny_model

from runnel import Embedder


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.make_bucket("bucket")
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A local S3 server with the bucket "bucket", and the environment variables that lead LanceDB
    to it.
    """
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.refuse = None
    s3_server.before = lambda key, path: None


@pytest.fixture
def qdrant() -> Iterator[LocalQdrant]:
    """Qdrant in this process, which all stores at `qdrant+http` addresses use."""
    with local_qdrant() as client:
        yield client


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    def make(kind: str) -> Place:
        if kind == "s3":
            request.getfixturevalue("s3")
            return Place(kind, f"s3://bucket/{tmp_path.name}")
        if kind == "qdrant":
            request.getfixturevalue("qdrant")
            return Place(kind, URI)
        return Place(kind, str(tmp_path / "index"))

    return make
