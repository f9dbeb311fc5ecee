"""The steps in which `VectorScorer` and `Judging` read: whole blocks of one row of ids or several,
laid end to end.

A block needs nothing of the blocks before it, because there is no state. (`Engine` reads for
recurrent models, and pools the hidden vectors of texts for embedders.)

T  tokens of a row      n  tokens of a block      D  width of the hidden vectors
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from runnel.backbones.encoder.config import Form
from runnel.batching import grouped
from runnel.errors import NumericalError
from runnel.models.model import Model
from runnel.request import TokenCount

_STEP = 1024  # tokens: on a CPU longer steps gain little (docs/performance.md)


def read_blocks(
    model: Model, forms: Sequence[Form], rows: Iterable[np.ndarray], count: TokenCount
) -> Iterator[tuple[int, np.ndarray]]:
    """Read rows of ids (T,), which are taken as there is room in a step.

    `count` counts the tokens of each step.

    Yields:
        The blocks of all rows in order, none for an empty row: the place of the block's first token
        in its row, and the hidden vectors (n, forms D) float32, of all forms side by side. They are
        bit-equal in whatever steps they are read.

    Raises:
        NumericalError: a hidden vector is NaN or infinite.
    """
    blocks = (
        (start, row[start:end])
        for row in rows
        for start, end in pairwise([0, *model.backbone.block_ends(row).tolist()])
        if start < end
    )
    for step in grouped(
        blocks,
        lambda block: len(block[1]),
        _STEP if model.backbone.without_torch else model.engine.step_tokens,
    ):
        ids = np.concatenate([block for _, block in step], dtype=np.int64)
        edges = np.cumsum([0, *(len(block) for _, block in step)])
        hidden = model.backbone.step_arrays(ids, edges, forms)
        count.add(len(ids))
        for (start, _), (first, last) in zip(step, pairwise(edges.tolist()), strict=True):
            broken = ~np.isfinite(hidden[first:last]).all(axis=1)
            if broken.any():
                raise NumericalError.while_reading(
                    f"the hidden vectors at token {start + int(broken.argmax())}"
                )
            yield start, hidden[first:last]
