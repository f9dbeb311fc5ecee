"""Fixtures shared with other folders."""

from helpers.bench_workers import fake_workers
from helpers.tiny_shapes import tiny_shapes

__all__ = ["fake_workers", "tiny_shapes"]
