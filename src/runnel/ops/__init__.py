"""Recurrences as pure functions: (packed tensors, cu_seqlens, state) -> (outputs, new state). No
modules, no configuration.

Each is in the package of its name. Nothing is imported here, because some kernels need no torch.
"""
