"""What padding costs: floating-point operations for texts of given lengths, packed and padded,
counted in three ways.

T  tokens of a text      Q  tokens of a chunk      H  heads      G  groups      N  state size
P  head size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from runnel.backbones.base import Backbone
from runnel.backbones.mamba2.model import Mamba2
from runnel.errors import InputError

WAYS = ("packed", "padded_sorted", "padded")  # in the order in which they are shown
COUNTS = {  # by the keys' prefix
    "": "linear layers, recurrence, attention",
    "standard_": "2 x parameters, attention",
    "ssd_": "2 x parameters, SSD in chunks of 256",
}
_CHUNK = 256  # Q of the released kernels; the fastest in paper D


def padding(lengths: Sequence[int], batch: int, backbone: Backbone) -> dict[str, int]:
    """Count the work of `backbone` for texts of these lengths in batches of `batch`, each padded to
    its longest text.

    Returns:
        "texts", "batch", "tokens" (of all texts), "padded" and "padded_sorted" (tokens read in the
        given order, and sorted by length), "flops" (per token in linear layers, convolution and
        recurrence), and for each of `WAYS` "packed_flops" by `Backbone.flops`,
        "standard_packed_flops" by `standard_flops` and, of Mamba-2, "ssd_packed_flops" by
        `ssd_flops`.

    Raises:
        InputError: no lengths, one below 1, or a batch below 1.
    """
    if not lengths or min(lengths) < 1 or batch < 1:
        raise InputError(
            "lengths must be whole numbers from 1, at least one of them, and so must the batch"
        )
    read = {
        "packed": list(lengths),
        "padded": _padded(lengths, batch),
        "padded_sorted": _padded(sorted(lengths), batch),
    }
    facts = {
        "texts": len(lengths),
        "batch": batch,
        "tokens": sum(lengths),
        "flops": backbone.flops_per_token,
    }
    facts |= {way: sum(read[way]) for way in ("padded", "padded_sorted")}
    counts: dict[str, Callable[[int], int]] = {
        "": backbone.flops,
        "standard_": partial(standard_flops, backbone),
    }
    if isinstance(backbone, Mamba2):
        counts["ssd_"] = lambda tokens: ssd_flops(backbone, tokens)
    for prefix, count in counts.items():
        for way, tokens in read.items():
            facts[f"{prefix}{way}_flops"] = sum(
                texts * count(length) for length, texts in Counter(tokens).items()
            )
    return facts


def standard_flops(backbone: Backbone, tokens: int) -> int:
    """Return the operations for a text by the formula that papers print: 2 for each parameter and
    token, and attention.

    Source: Kaplan et al. (2020), table 1.
    Differs: embeddings are parameters too, as in the retrieval papers' tables; no term for a
        recurrence.
    """
    attention = backbone.flops(tokens) - tokens * backbone.flops_per_token
    return 2 * tokens * sum(parameter.numel() for parameter in backbone.parameters()) + attention


def ssd_flops(backbone: Mamba2, tokens: int) -> int:
    """Return the operations for a text with the recurrence as matrix products of chunks, a
    multiply-add counting 2.

    To 2 for each parameter and token come, for each layer and token: Q G N (C with B), Q H P (the
    result with x), H N P (the state of the chunk) and H N P (its output), and H N P for each chunk
    (the states passed on).

    Source: Dao and Gu (2024), section 6, which then sets Q = N = P.
    """
    c = backbone.config
    q = min(_CHUNK, tokens)
    state = c.num_heads * c.state_size * c.head_size
    each = q * c.groups * c.state_size + q * c.num_heads * c.head_size + 2 * state
    chunks = -(-tokens // q)
    return standard_flops(backbone, tokens) + 2 * c.num_layers * (tokens * each + chunks * state)


def _padded(lengths: Sequence[int], batch: int) -> list[int]:
    """Return the lengths that texts are padded to."""
    return [max(lengths[i - i % batch : i - i % batch + batch]) for i in range(len(lengths))]
