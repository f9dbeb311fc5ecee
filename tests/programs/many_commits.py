"""A process that sees many commits of an index of 20 documents: a writer as of a project, and
readers that search each commit.
"""

import os
import sys

from helpers.children import resident_mib
from helpers.stored_documents import SETTINGS, document, unit

from runnel.search.lance import LanceStore

DOCUMENTS, REPLACED, READERS = 20, 5, 2


def main(folder: str, *reported: str) -> None:
    """Print the memory after each of the `reported` numbers of commits."""
    writer = LanceStore.create(folder, SETTINGS)
    readers = [LanceStore.open(folder) for _ in range(READERS)]
    for number in range(1, int(reported[-1]) + 1):
        first = number * REPLACED
        names = (
            range(DOCUMENTS)
            if number == 1
            else [i % DOCUMENTS for i in range(first, first + REPLACED)]
        )
        batch = [
            document(f"d{i}", [f"edition{number} of a text. "], [unit(1, i, number, 0)])
            for i in names
        ]
        writer.commit(
            [row for row, _ in batch],
            [passage for _, passages in batch for passage in passages],
            [],
        )
        writer.optimize()
        for reader in readers:
            assert reader.refresh() and len(reader.content_hashes()) == DOCUMENTS
            assert (
                len(reader.nearest(unit(1, 0, 0, 0), REPLACED, []))
                == REPLACED
                == len(reader.lexical("text", REPLACED, []))
            )
        if str(number) in reported:
            print(resident_mib(os.getpid()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
