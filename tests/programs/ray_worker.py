"""A worker of `runnel.integrations.ray` that logs its batches, and stops at its third one while a
file is there.
"""

import os
import time
from pathlib import Path
from typing import Any

from runnel.integrations.ray import _Worker


class LoggedWorker(_Worker):
    def __init__(self, pool: Any, runnel: str) -> None:
        super().__init__(pool, runnel)
        self._folder = Path(os.environ["RAY_WORKER_LOG"])
        self._begun = 0
        encode = self._encoder.encode

        def logged(rows: Any) -> Any:
            if rows:
                self._begun += 1
                with (self._folder / "log").open("a", encoding="utf-8") as log:
                    log.write(f"{os.getpid()} {rows[0].id}\n")
            while self._begun == 3 and (self._folder / "hang").exists():
                time.sleep(0.05)
            return encode(rows)

        self._encoder.encode = logged  # type: ignore[method-assign, assignment]
