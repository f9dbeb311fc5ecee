"""Fixtures shared with other folders."""

from helpers.bench_workers import fake_workers, real_jobs
from helpers.tiny_shapes import tiny_shapes

__all__ = ["fake_workers", "real_jobs", "tiny_shapes"]
