"""Recurrences as pure functions: (packed tensors, cu_seqlens, state) -> (outputs, new state). No modules, no configuration."""

from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.gated_rms_norm import gated_rms_norm
from runnel.ops.mlstm import mlstm
from runnel.ops.selective_scan import selective_scan
from runnel.ops.ssd import ssd
from runnel.ops.trapezoid import trapezoid
from runnel.ops.wkv7 import wkv7

__all__ = ["causal_conv1d", "gated_rms_norm", "mlstm", "selective_scan", "ssd", "trapezoid", "wkv7"]
