"""Training examples as records: triples for embedders and rerankers, evidence for sentence
retrievers; and the counts of the examples that a reader drops.

`triples` and `evidence` read them from files.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from runnel.errors import counted


@dataclass(frozen=True, slots=True)
class Triple:
    """A query with documents that answer it and documents that do not. No text is empty, and
    `positives` is not empty.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    id: str = ""  # the query's id, if the data has one
    instruction: str = ""  # the query's instruction, if the data has one for each query


@dataclass(frozen=True, slots=True)
class Evidence:
    """A query with a document and at least one [start, end) character span of it that answers the
    query.
    """

    query: str
    document: str
    spans: tuple[tuple[int, int], ...]
    id: str = ""
    # spans that tile the document and are scored instead of its sentences, if the data has some
    units: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Dropped:
    """Counts of kept examples, and of dropped ones by reason. Pass one to a reader; afterwards
    inspect it or log its `str`.
    """

    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # reason -> place of the first such example

    def add(self, reason: str, where: str, count: int = 1) -> None:
        if count:
            self.counts[reason] += count
            self.first.setdefault(reason, where)

    def __str__(self) -> str:
        reasons = "; ".join(
            f"{count:,} {reason} (first: {self.first[reason]})"
            for reason, count in self.counts.most_common()
        )
        return f"{counted(self.kept, 'example')} kept" + (
            f", left out: {reasons}" if reasons else ""
        )

    def keep(self, where: str, reasons: Mapping[str, bool]) -> bool:
        """Count an example as kept, or as dropped for the first of the reasons that holds."""
        for reason, holds in reasons.items():
            if holds:
                self.add(reason, where)
                return False
        self.kept += 1
        return True
