"""Shards of lines: whatever a file holds and however many shards there are, every line is in one of them, in order."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnel.commands import rows
from runnel.commands.rows import FileRange, Shard, count_lines, line_range
from runnel.errors import InputError

PIECES = [b"\n", b"\r\n", b"\r", b"a", b"long line ", "é".encode(), b"\xef\xbb\xbf"]
CONTENTS = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)
COUNTS = st.integers(1, 60)


def all_shards(count):
    return [Shard(number, count) for number in range(1, count + 1)]


def part(content: bytes, shard: Shard) -> bytes:
    start, end = line_range(io.BytesIO(content), *shard.of(len(content)))
    return FileRange(io.BytesIO(content), start, end).readall()


@given(CONTENTS, COUNTS, st.integers(1, 7))
@example(b"", 3, 1)
@example(b"\n", 2, 1)
@example(b"a\n\n", 2, 1)
@example(b"no newline", 4, 1)
@example(b"a\r\nb\r\n", 6, 1)
def test_shards_part_the_lines_exactly(content, count, piece):
    parts = [part(content, shard) for shard in all_shards(count)]
    assert b"".join(parts) == content
    sizes = [end - start for start, end in (shard.of(len(content)) for shard in all_shards(count))]
    assert max(sizes) - min(sizes) <= 1
    at = 0
    for line in io.BytesIO(content):  # a line belongs to the shard in whose bytes it begins
        owner = next(n for n, shard in enumerate(all_shards(count)) if at < shard.of(len(content))[1])
        assert len(b"".join(parts[:owner])) <= at < len(b"".join(parts[: owner + 1]))
        at += len(line)
    before = 0  # lines, as Python counts them
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_PIECE", piece)
        for shard, lines in zip(all_shards(count), parts, strict=True):
            start, _ = line_range(io.BytesIO(content), *shard.of(len(content)))
            assert start == len(content) or count_lines(io.BytesIO(content), start) == before
            before += len(io.TextIOWrapper(io.BytesIO(lines), "utf-8").readlines())


def test_a_shard_is_written_as_two_numbers():
    shard = Shard.parse("2/8")
    assert (shard, str(shard)) == (Shard(2, 8), "2/8")
    for bad in ("0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3", " 1/2", "¹/2", ""):
        with pytest.raises(InputError, match="--shard must be I/N with 1 <= I <= N, like 2/8"):
            Shard.parse(bad)
