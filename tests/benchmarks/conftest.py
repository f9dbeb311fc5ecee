"""Fixtures shared with other folders."""

from helpers.bench_workers import fake_workers, real_jobs

__all__ = ["fake_workers", "real_jobs"]
