"""`runnel check`: verify that what an index stores is complete and undamaged."""

from dataclasses import asdict

from runnel.commands import display, indexes, parameters, search
from runnel.errors import counted


def check(place: search.In = None, *, as_json: parameters.Json = False) -> int:
    """Verify that an index is complete and undamaged.

    Prints all damage of everything that the index stores.
    Example: runnel check --in library

    Without --in: the project's own index. Exit code: 0 nothing is damaged, 1 damage or an error.
    """
    from runnel.search.check import check_store
    from runnel.search.stores import open_store

    place = place or str(indexes.expect_project().place)
    store = open_store(place)
    commit = store.last_commit()
    damage = check_store(store)
    for item in damage:
        label = "" if item.document is None else f"damaged: {item.document}: "
        display.say(f"{label}{item.reason}")
    line = (
        f"{place}: {counted(commit.documents, 'document')}, {counted(commit.passages, 'passage')},"
        " none damaged"
    )
    if damage:
        line = (
            f"{place}: {len(damage):,} damaged; restore it from a copy, or delete damaged documents"
            " (Index.delete) and index them again"
        )
    display.print_facts(
        as_json,
        {
            "index": place,
            "documents": commit.documents,
            "passages": commit.passages,
            "damaged": [asdict(item) for item in damage],
        },
        line,
    )
    return 1 if damage else 0
