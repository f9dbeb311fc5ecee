"""Retrieval in one pass over a text of any length, in model memory that does not grow: vectors,
relevance, answering sentences.

The public names are `__all__`. They are imported on first use, so that `import runnel` costs
nothing and never imports torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.backbones.checkpoint.load import load_backbone as load_backbone
    from runnel.backbones.state import State as State
    from runnel.engine import Engine as Engine
    from runnel.engine import Request as Request
    from runnel.engine import Result as Result
    from runnel.errors import RunnelError as RunnelError
    from runnel.models.embedder import Embedder as Embedder
    from runnel.models.reranker import Reranker as Reranker
    from runnel.models.sentence_retriever import SentenceRetriever as SentenceRetriever
    from runnel.records import Document as Document
    from runnel.records import Hit as Hit
    from runnel.records import Sentence as Sentence
    from runnel.search.index import Index as Index
    from runnel.text.quotes import verify_quote as verify_quote
    from runnel.text.templates import Template as Template

_HOMES = {
    "Document": "runnel.records",
    "Embedder": "runnel.models.embedder",
    "Engine": "runnel.engine",
    "Hit": "runnel.records",
    "Index": "runnel.search.index",
    "Request": "runnel.engine",
    "Reranker": "runnel.models.reranker",
    "Result": "runnel.engine",
    "RunnelError": "runnel.errors",
    "Sentence": "runnel.records",
    "SentenceRetriever": "runnel.models.sentence_retriever",
    "State": "runnel.backbones.state",
    "Template": "runnel.text.templates",
    "load_backbone": "runnel.backbones.checkpoint.load",
    "verify_quote": "runnel.text.quotes",
}

_OF_TORCH = ("State", "load_backbone")  # names whose modules import torch

__version__ = "0.1.0"
__all__ = [*_HOMES]


# Threads that reach the end of a parallel region spin for milliseconds by default, waiting for the
# others. While another process was busy, this made a short text 17 times slower. GNU OpenMP reads
# this number of spins once, when torch is first imported.
if "torch" not in sys.modules:
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'runnel' has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    if name in _OF_TORCH:
        from runnel.errors import needing

        with needing(f"runnel.{name} needs torch", "recurrent"):  # the extra to install
            home = import_module(_HOMES[name])
    else:
        home = import_module(_HOMES[name])
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
