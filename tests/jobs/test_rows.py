"""Shards of lines: whatever a file holds and however many shards there are, every line is in one of
them, in order.
"""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.jobs.rows import FileRange, Shard, count_lines, line_start

PIECES = [b"\n", b"\r\n", b"\r", b"a", b"long line ", "é".encode(), b"\xef\xbb\xbf"]
CONTENTS = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


@given(CONTENTS, st.integers(1, 60))
@example(b"", 3)
@example(b"\n", 2)
@example(b"a\n\n", 2)
@example(b"no newline", 4)
@example(b"a\r\nb\r\n", 6)
def test_shards_part_the_lines_exactly(content, count):
    shards = [Shard(number, count).of(len(content)) for number in range(1, count + 1)]
    sizes = [end - start for start, end in shards]
    assert max(sizes) - min(sizes) <= 1
    parts = []
    before = 0  # lines, as Python counts them
    for edges in shards:
        start, end = (line_start(io.BytesIO(content), at) for at in edges)
        parts.append(FileRange(io.BytesIO(content), start, end).readall())
        assert start == len(content) or count_lines(io.BytesIO(content), start) == before
        before += len(io.TextIOWrapper(io.BytesIO(parts[-1]), "utf-8").readlines())
    assert b"".join(parts) == content
    at = 0
    for line in io.BytesIO(content):  # a line belongs to the shard in whose bytes it begins
        owner = next(n for n, (_, end) in enumerate(shards) if at < end)
        assert len(b"".join(parts[:owner])) <= at < len(b"".join(parts[: owner + 1]))
        at += len(line)


def test_a_shard_is_written_as_two_numbers():
    shard = Shard.parse("2/8")
    assert (shard, str(shard)) == (Shard(2, 8), "2/8")
    for bad in ("0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3", " 1/2", "¹/2", ""):
        with pytest.raises(InputError, match=r"--shard.*1 <= I <= N"):
            Shard.parse(bad)
