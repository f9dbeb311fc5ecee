"""The base class of all heads: which parts of a text a head needs from the engine, and its name and
settings in config.json. Weights are arrays (`models/pocket/heads.py`) or torch's
(`models/recurrent/heads.py`).
"""

import re
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from runnel.errors import InputError
from runnel.request import Array, Request, Result
from runnel.text.templates import Template

# A row of two texts, such as a query and a document, has marks for each token: one number for each
# row of `TokenFeatures.mark_vectors`. These rows, times the numbers, are added to the token's
# embedding. The columns of the marks:
MARK_MATCH = 0  # idf of a token of the later part that also occurs in the earlier part
MARK_DOCUMENT = 1  # 1 for document tokens that follow a query (sentence retrieval)
MARK_QUERY = 2  # 1 for query tokens that follow a document (reranking)
MARKS = 3

# The score of a document without a token: below any other score. JSON has numbers for it, and even
# for exp(700), the odds against it, but not for infinity.
WITHOUT_TOKENS = -700.0
Pooling = Literal["cls", "eos", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
# The inputs of a head:
#   "text"      the pooled hidden vectors of a text
#   "matches"   also the means of two parts of the text, and their matching tokens
#               (`models/items.py`)
#   "state"     the state after the last token
#   "tokens"    the hidden vector before each token of the query
#   "vectors"   stored vectors of a query and a document that are read separately
Inputs = Literal["text", "matches", "state", "tokens", "vectors"]


class Head:
    """A head: what it needs of a text, and its settings. It is called to compute vectors or scores
    from its inputs, which each kind states.
    """

    # names that it may have in a model
    jobs: ClassVar[tuple[str, ...]] = ("embed", "sentences", "rerank")
    pooling: Pooling = "eos"  # the hidden vector, or the mean, that represents a text
    inputs: Inputs = "text"
    state: ClassVar[str] = ""  # the tensor of the state that it reads
    template: Template | None = None  # of a pair, if the head has one of its own
    only_normalizes: ClassVar[bool] = False  # its vectors are the pooled ones, of unit length
    __call__: Any

    def __init__(self, **options: object) -> None:
        self.options = options  # its settings in config.json, without the model's widths

    @property
    def for_inference(self) -> Any:
        """The head that computes: this one, or for a `HeldHead`, which trains, the head of arrays
        whose weights it holds.
        """
        return self

    @property
    def config(self) -> dict[str, object]:
        """The head in config.json: its kind and settings."""
        return {"kind": head_kind(type(self.for_inference)), **self.options}

    def request(self, ids: np.ndarray) -> Request:
        """Return the request that `pooling` or `state` needs for a text."""
        if self.inputs == "state":
            return Request(ids, [], keep_state=True)
        if self.pooling == "mean":
            return Request(ids, ranges=np.array([[0, len(ids)]]))
        return Request(ids, [0 if self.pooling == "cls" else len(ids) - 1])

    def pooled(self, result: Result) -> Array:
        """Return the pooled hidden vector (1, D), D its width, or the tensor of the state of all L
        layers (1, L, ...), from the result of `request`.
        """
        if self.inputs == "state":
            assert result.state is not None
            return result.state[self.state]
        return result.means if self.pooling == "mean" else result.hidden


def head_kind(head: type) -> str:
    """Return the name of a kind of head in config.json, such as "end_vector"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", head.__name__).lower()


def check_pooling(pooling: Pooling | None, title: str, *, causal: bool) -> None:
    """Raise InputError for the first token's vector of a model that reads from left to right."""
    if pooling == "cls" and causal:
        raise InputError(
            f"{title} is causal: its first token cannot represent the text; use pooling 'eos' or"
            " 'mean'"
        )
