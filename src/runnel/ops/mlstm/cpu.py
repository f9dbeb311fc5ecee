"""mlstm as compiled CPU kernels, for reading; fp32 arithmetic for fp32 and bf16 inputs. Training runs in plain torch.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runnel.ops.chunks import Shares
from runnel.ops.mlstm import State
from runnel.ops.mlstm import forward as kernels
from runnel.ops.mlstm.forward import Inputs, States
from runnel.ops.mlstm.torch import mlstm_torch
from runnel.ops.numba_math import as_array, flat_rows, float_array, parallel
from runnel.ops.packed import copy_state
from runnel.ops.simd import TILE_COLUMNS, ceil_div


def mlstm_cpu(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: State | None, eps: float
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, i, f, *(state or ()))):
        return mlstm_torch(q, k, v, i, f, cu, state, eps)
    sequences, heads, width, size = cu.numel() - 1, v.shape[1], q.shape[2], v.shape[2]
    C, n, m = (None,) * 3 if state is None else state
    h, end = torch.empty(v.shape, dtype=v.dtype), copy_state(C, v.device, sequences, heads, width, size)
    threads = torch.get_num_threads()
    # Long sequences with few heads: the columns of V are divided too. Every part repeats only the work on q and k.
    splits = max(1, min(threads // max(1, heads * sequences), ceil_div(size, TILE_COLUMNS)))
    shares = Shares.of(cu.diff().numpy(), heads * splits, threads, heads * splits)
    end_n = copy_state(n, v.device, sequences, heads, width)[:, :, None].expand(-1, -1, splits, -1).contiguous()
    end_m = copy_state(m, v.device, sequences, heads)[:, :, None].expand(-1, -1, splits).contiguous()
    inputs = Inputs(*flat_rows(q), *flat_rows(k), *flat_rows(v), float_array(i), float_array(f))
    with parallel():
        kernels.scan(
            inputs, cu.numpy(), splits, shares, np.float32(eps), as_array(h), States(*map(as_array, (end, end_n, end_m)))
        )
    return h, (end, end_n[:, :, 0].contiguous(), end_m[:, :, 0].contiguous())
