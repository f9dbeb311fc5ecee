"""The steps in which an encoder reads documents: a step is one call of the encoder, with whole
blocks of one row or several, laid end to end.

Row      the ids of a text with the markers around its blocks (`models/pocket/layout.py`).
Block    the tokens that the encoder reads together, from a begin marker to the end marker. It needs
         nothing of the blocks before it, because there is no state; but an encoder with mixers
         (`backbones/mamba2_encoder`) carries one from block to block of a row.
Form     the encoder with one set of upper layers; all forms share the lower ones, which a step
         runs once (`backbones/encoder/config.py`). "texts" reads a text by itself; "sentences" is
         for the vectors of a text's sentences; "judge" and "pair" read the best sentences again. A
         form without layers of its own gives the same as "texts".

`read_blocks` reads for the sentence retriever (`VectorScorer` and `Judging`), and `read_passages`
pools what it reads for the embedder (`PassageReader`). Other texts of an embedder
(`Embedder.encode`), and all texts of recurrent language models, are read by an `Engine`, where
threads share the steps of short texts.

T  tokens of a row      n  tokens of a block      D  width of the hidden vectors
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from runnel.backbones.encoder.config import Form
from runnel.batching import grouped
from runnel.errors import NumericalError
from runnel.models.model import Model
from runnel.request import OpenRequest, Request, Result, TokenCount, on_cpu

# Tokens of a step without torch: on a CPU longer ones gain little (docs/performance.md). With
# torch, perhaps on a GPU, a step has as many as the engine's.
_STEP = 1024


def read_blocks(
    model: Model,
    forms: Sequence[Form],
    rows: Iterable[np.ndarray],
    count: TokenCount | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Read rows of ids (T,), which are taken as there is room in a step.

    Args:
        forms: each gives a token a hidden vector of its own; an encoder with mixers has only one.
        count: counts the tokens of each step.

    Yields:
        The blocks of all rows in order, none for an empty row: the place of the block's first token
        in its row, and the hidden vectors (n, forms D) float32: for each token the vectors of all
        forms, side by side in the order of `forms`. They are bit-equal in whatever steps they are
        read; those of an encoder with mixers are equal but for rounding.

    Raises:
        NumericalError: a hidden vector is NaN or infinite.
    """
    # `block_ends` finds the blocks of a row by their begin markers
    blocks = (
        (start, row[start:end])
        for row in rows
        for start, end in pairwise([0, *model.backbone.block_ends(row).tolist()])
        if start < end
    )
    state: Any = None  # of the row whose blocks go on in the next step
    for step in grouped(
        blocks,
        lambda block: len(block[1]),
        _STEP if model.backbone.without_torch else model.engine.step_tokens,
    ):
        ids = np.concatenate([block for _, block in step], dtype=np.int64)
        edges = np.cumsum([0, *(len(block) for _, block in step)])
        if model.backbone.recurrent:  # an encoder with mixers: it reads rows, not single blocks
            begins_row = [number for number, (start, _) in enumerate(step) if start == 0]
            if begins_row[:1] == [0]:  # nothing of the row of the step before is left
                state = None
            # where each row, or its part in this step, begins and ends
            row_edges = edges[np.unique([0, *begins_row, len(step)])]
            hidden, state = model.backbone.step_rows(ids, row_edges, state)
        else:
            hidden = model.backbone.step_forms(ids, edges, forms)
        if count is not None:
            count.add(len(ids))
        for (start, _), (first, last) in zip(step, pairwise(edges.tolist()), strict=True):
            broken = ~np.isfinite(hidden[first:last]).all(axis=1)
            if broken.any():
                raise NumericalError.while_reading(
                    f"the hidden vectors at token {start + int(broken.argmax())}"
                )
            yield start, hidden[first:last]


def read_passages(
    model: Model, requests: Sequence[Request], forms: Sequence[Form], count: TokenCount
) -> Iterator[Result]:
    """Yield the results of requests, as an engine does, in order. They are pooled from the hidden
    vectors of the first of the `forms`; `Request.take` gets the hidden vectors (n, forms D) of all.

    Raises:
        NumericalError: a hidden vector is NaN or infinite.
    """
    weight = np.asarray(on_cpu(model.weight))
    blocks = read_blocks(model, forms, (request.ids for request in requests), count)
    for request in requests:
        reading = OpenRequest(request, request.ids)  # sums and picks hidden vectors block by block
        while reading.left:  # tokens
            start, hidden = next(blocks)
            if request.take is not None:
                request.take(start, hidden)
            pooled = hidden[:, : model.backbone.hidden_size]  # those of the first form
            weights = weight[request.ids[start : start + len(pooled)]]
            # `part`: the hidden vectors and the sums that the request wants of these tokens
            reading.add(len(pooled), *reading.part(start, pooled, weights))
        yield reading.result()
