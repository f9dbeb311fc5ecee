"""Without its library, each module says which extra to install."""

import importlib
import sys

import pytest

from runnel.errors import MissingDependency


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("haystack", "haystack", "haystack"),
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("mteb", "mteb", "lab"),
        ("qdrant", "qdrant_client", "qdrant"),
        ("sentence_transformers", "sentence_transformers", "lab"),
    ],
)
def test_the_extra_is_named(monkeypatch, module, library, extra):
    name = f"runnel.integrations.{module}"
    monkeypatch.setitem(sys.modules, name, None)  # so that it is restored
    monkeypatch.delitem(sys.modules, name)
    for loaded in [one for one in sys.modules if one.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=rf"{library}.*pip install .*\[{extra}\]"):
        importlib.import_module(name)
