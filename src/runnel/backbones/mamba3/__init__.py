"""Mamba-3, a recurrent backbone (a state-space model) of Lahoti et al., "Mamba-3", 2026 (arXiv
2603.15569).

    model      token ids -> hidden vectors, in torch: the configuration, the equations of a block,
               and its weights; the recurrence is `ops.trapezoid`, in plain torch
    formats    reads checkpoints of the authors' package, state-spaces/mamba

Unlike Mamba-2 and RWKV-7 it has no kernels of its own, neither for the CPU nor for a GPU.
"""
