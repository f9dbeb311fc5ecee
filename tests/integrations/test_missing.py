"""Without its library, each module says which extra to install, and such an extra exists."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from runnel.errors import MissingDependency

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    "haystack": "haystack",
    "langchain": "langchain_core",
    "llama_index": "llama_index",
    "mteb": "mteb",
    "qdrant": "qdrant_client",
    "sentence_transformers": "sentence_transformers",
}


@pytest.mark.parametrize(("module", "library"), LIBRARIES.items(), ids=LIBRARIES)
def test_the_extra_is_named(monkeypatch, module, library):
    name = f"runnel.integrations.{module}"
    monkeypatch.setitem(sys.modules, name, None)  # so that it is restored
    monkeypatch.delitem(sys.modules, name)
    for loaded in [one for one in sys.modules if one.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=rf"{library}.*pip install .*\[[a-z-]+\]") as error:
        importlib.import_module(name)
    (extra,) = re.findall(r"\[([a-z-]+)\]", str(error.value))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(line.replace("-", "_").startswith(library[:9]) for line in extras[extra]), extras[extra]
