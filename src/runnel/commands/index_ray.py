"""`runnel index --shard 1-64/64 --ray`: many shards of files at a time, on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runnel.commands.display import Meter, print_json, print_text, report_failed, say
from runnel.errors import InputError, counted
from runnel.text.shards import Shard

if TYPE_CHECKING:
    from runnel.integrations.ray import ShardOutcome, ShardProgress
    from runnel.search.records import FieldType


class New(NamedTuple):
    """Options of a new index, as `Index.create` takes them."""

    fields: Mapping[str, FieldType]
    passage_tokens: int | None
    remember: bool


class Room(NamedTuple):
    """Resources on Ray: a cluster's address (None: Ray on this machine), and the number and size of workers."""

    address: str | None
    workers: int | None
    cpus: int
    gpus: float


def read_shards(
    paths: Sequence[str], to: str, shards: Sequence[Shard], model: str | None, new: New, room: Room, as_json: bool
) -> int:
    """Read these shards of `paths` into the folder `to`; return exit code 1 if any is not finished."""
    from runnel.integrations.ray import encode_shards

    with Meter("starting workers") as meter:
        outcome = encode_shards(
            paths, to, shards, model or "pocket", **new._asdict(), **room._asdict(), progress=_Reporter(meter)
        )
    _report(outcome, len(shards), to, as_json)
    return 0 if len(outcome.manifests) == len(shards) else 1


def parse_shards(text: str) -> list[Shard]:
    """Parse 2/8 as one shard, 3-6/8 as four.

    Raises:
        InputError: anything else.
    """
    numbers, slash, count = text.partition("/")
    first, dash, last = numbers.partition("-")
    if not dash:
        return [Shard.parse(text)]
    ends = [Shard.parse(f"{number}{slash}{count}") for number in (first, last)]
    if ends[0].number > ends[1].number:
        raise InputError(f"--shard must be I/N or I-J/N with I <= J, like 1-8/8, got {text!r}")
    return [Shard(number, ends[0].count) for number in range(ends[0].number, ends[1].number + 1)]


class _Reporter:
    """Progress as a bar on a terminal, else a line for each finished shard."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._done = meter, 0

    def __call__(self, progress: ShardProgress) -> None:
        far = f"{progress.done:,} of {progress.count:,} shards"
        if progress.workers:
            self._meter.label = f"{far}, {progress.workers:,} workers"
        left = progress.tokens_left
        self._meter(progress.tokens, None if left is None else progress.tokens + left)
        if progress.done > self._done and not sys.stderr.isatty():
            speed = f", {progress.tokens / progress.seconds:,.0f} tokens/s" if progress.tokens else ""
            say(f"{far}{speed}")
        self._done = progress.done


def _report(outcome: ShardOutcome, wanted: int, to: str, as_json: bool) -> None:
    left_out = {name: reason for manifest in outcome.manifests for name, reason in manifest.failed.items()}
    report_failed(left_out)
    failed = {str(shard): reason for shard, reason in sorted(outcome.failed.items(), key=lambda item: item[0].number)}
    for name, reason in failed.items():
        say(f"shard {name} failed: {' '.join(reason.split())}")
    if outcome.not_begun:
        left = f"{len(outcome.not_begun):,} shard{'s were' if len(outcome.not_begun) > 1 else ' was'} not begun"
        say(f"{left} after these errors; repeat the command when the cause is gone")
    counts = {name: sum(getattr(one, name) for one in outcome.manifests) for name in ("documents", "passages", "tokens")}
    if as_json:
        facts = {"folder": to, "shards": len(outcome.manifests), "wanted": wanted, **counts, "left_out": left_out}
        facts |= {"not_begun": [str(shard) for shard in outcome.not_begun]}
        print_json(facts | {"failed": failed, "tokens_read": outcome.tokens, "seconds": round(outcome.seconds, 3)})
        return
    sums = ", ".join(counted(count, name.removesuffix("s")) for name, count in counts.items())
    print_text(f"{to}: {len(outcome.manifests):,} of {wanted:,} shards, {sums}; {counted(outcome.tokens, 'token')} read")
