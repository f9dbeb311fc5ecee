"""How many tokens the prompts of each strategy have: the figures in docs/papers.md, table 4, and docs/data.md."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.children import PATHS, TESTS
from helpers.synthesis import follow

from runnel import Embedder
from runnel.generation.endpoint import Reply
from runnel.lab.replies import Replies
from runnel.lab.synthesis.examples import Settings, Synthesis
from runnel.lab.synthesis.sources import Cutter, Sources
from runnel.lab.training.decontaminate import Decontaminator

pytestmark = pytest.mark.slow

BILLIONS = {"chunk": 0.79, "pair": 1.37, "link": 6.07}  # of tokens read for a million examples, in sentences
DOCS = TESTS.parent / "docs"


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "reference.txt"
    program = [sys.executable, str(TESTS.parent / "examples" / "python_reference.py"), str(path)]
    subprocess.run(program, check=True, env=PATHS, capture_output=True)
    return path


@pytest.mark.parametrize("strategy", BILLIONS)
def test_tokens_of_a_million_examples(strategy, reference, tmp_path):
    embedder = Embedder.load("pocket")

    def complete(messages, **more):
        tokens = sum(len(embedder.model.tokenizer.encode(one["content"])) for one in messages)
        return Reply(follow(messages), "stop", tokens, 1)

    with Replies(SimpleNamespace(model="m", url="u", complete=complete), tmp_path / "store") as replies:
        any_partner = lambda texts: np.ones((len(texts), 1))  # noqa: E731  (which place is the nearest matters little)
        synthesis = Synthesis(replies, Settings(strategy, threads=1), any_partner, Decontaminator([]))
        rows = list(synthesis.rows(Cutter(embedder.model.tokenizer).cuts(Sources([str(reference)], 0, print))))
        read = synthesis.cost(replies.used)["input_tokens"] / 1e9
    assert len(rows) >= 20 and read == pytest.approx(BILLIONS[strategy], rel=0.1), "the reference differs with Python's version"
    assert all(f"{BILLIONS[strategy]:.2f}" in (DOCS / page).read_text() for page in ("data.md", "papers.md"))
