"""A writer among others: commits documents one after another and says which commits were its own."""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress

from helpers.stored_documents import document, unit

from runnel.errors import StoreError
from runnel.search.lance import LanceStore


def main(uri: str, name: str, attempts: str) -> None:
    store = LanceStore.open(uri)
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(int(attempts)):
        if i % 10 == 9:
            with suppress(StoreError):  # the other one may be in the way
                store.optimize()
        start = time.monotonic()
        row, passages = document(f"{name}{i}", [f"about {name}{i}. ", "more."], [unit(1, 2, 3, 4), unit(4, 3, 2, 1)])
        try:
            print(name, i, store.commit([row], passages, [f"{name}{i - 1}"] if i % 3 == 2 else []).number, flush=True)
        except StoreError as error:
            assert "another writer has changed" in str(error), error
            print(name, i, "lost", flush=True)
            time.sleep(random.uniform(0, time.monotonic() - start))  # two writers in step would stop each other again and again


if __name__ == "__main__":
    main(*sys.argv[1:])
