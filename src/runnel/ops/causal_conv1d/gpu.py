"""causal_conv1d by flash-linear-attention's kernels. Needs Triton and flash-linear-attention.

T  tokens      S  sequences      C  channels      w  taps

    y[t, c] = silu(bias[c] + sum over k < w of weight[c, k] * x[t - (w-1) + k, c])

That package's states are (S, C, w). They begin with one input more, on which no output depends: it
is added before the call and removed after it.
"""

from torch import Tensor
from torch.nn import functional as F

from runnel.ops.triton_launch import without_empty


def causal_conv1d_gpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    from fla.modules.causal_conv1d import causal_conv1d as convolve

    start = (
        x.new_zeros(cu.numel() - 1, weight.shape[0], weight.shape[1] - 1).float()
        if state is None
        else state.float()
    )
    # the sequences that have tokens, their bounds and their states
    filled, cu, kept = without_empty(cu, start)
    if not filled.numel() or not x.numel():
        return x.clone(), start.clone()
    y, end = convolve(  # in fp32, because end states take the dtype of x
        x[None].float(), weight, bias, initial_state=F.pad(kept, (1, 0)), output_final_state=True,
        activation="silu", cu_seqlens=cu.to(x.device), cu_seqlens_cpu=cu,
    )  # fmt: skip
    return y[0].to(x.dtype), start.index_copy(0, filled.to(x.device), end[..., 1:].float())
