"""RMS norm of a gated input, by groups (Mamba-2's norm before the output projection).

T  tokens      C  channels

The implementations are `torch.py`, `cpu.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one.
"""

from torch import Tensor

from runnel.ops.backend import implementation


def gated_rms_norm(
    y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int = 1, *, backend: str = "auto"
) -> Tensor:
    """Gate, then normalize. For each group of C / groups channels of a token:

        t = y * silu(z)
        t / sqrt(mean of t * t + eps) * weight

    Args:
        y: (T, C) fp64, fp32 or bf16.
        z: (T, C), the gate; it may be some columns of a wider matrix.
        weight: (C,).
        eps: added to the mean square.
        groups: number of groups of neighboring channels; divides C.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        (T, C) in y's dtype. Inputs are left unchanged.
    """
    return implementation("gated_rms_norm", backend, y)(y, z, weight, eps, groups)
