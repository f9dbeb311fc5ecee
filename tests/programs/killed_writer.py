"""A writer that is killed: commits documents one after another and says which are safe, as fast as
it can.
"""

import sys
from itertools import count

import numpy as np
from helpers.stored_documents import add, document

from runnel.search.lance import LanceStore


def text_of(number: int, version: int) -> str:
    return f"document {number} as edition{version}."


def main(uri: str) -> None:
    store = LanceStore.open(uri)
    begun = max((int(name[1:]) for name in store.content_hashes()), default=-1) - 1
    for version in count(max(begun, 0)):
        vector = np.eye(4, dtype=np.float32)[version % 4]
        batch = [
            document(f"d{n}", [text_of(n, version)], [vector]) for n in range(version, version + 3)
        ]
        add(store, *batch, delete=[f"d{version - 1}"])
        if version % 5 == 4:
            store.optimize()
        print(version, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
