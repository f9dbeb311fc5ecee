from helpers.bench_workers import fake_workers

__all__ = ["fake_workers"]
