"""Makes shards on a Ray of its own, to be killed on the way: `python ray_driver.py MODEL FILE FOLDER COUNT`."""

from __future__ import annotations

import sys

from programs.ray_worker import LoggedWorker

from runnel.integrations import ray as runnel_ray
from runnel.text.shards import Shard


def main(model: str, file: str, folder: str, count: str) -> None:
    runnel_ray.Worker = LoggedWorker  # type: ignore[attr-defined]
    shards = [Shard(n, int(count)) for n in range(1, int(count) + 1)]
    runnel_ray.encode_shards([file], folder, shards, model, workers=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
