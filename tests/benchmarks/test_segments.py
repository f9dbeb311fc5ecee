"""The sweep over segments and chunks."""

from benchmarks.segments import Grid, sweep, sweep_chunks

GRID = Grid("m", ((1, 256), (4, 64)), (64, 128, 256, None))


def test_every_segment_that_is_shorter_than_the_texts(fake_workers):
    points, checked = sweep(GRID, 3, lambda message: None)
    assert checked.passed
    assert [(p.batch, p.tokens, p.segment) for p in points] == [
        (batch, tokens, segment) for batch, tokens in GRID.cells for segment in (64, 128, None)
    ]
    assert {len(p.seconds) for p in points} == {3}
    assert {p.peak_bytes for p in points} == {1 << 20}
    assert len(fake_workers.started) == 1 + len(points)
    assert {request["segment"] for _, op, request in fake_workers.asked if op == "peak"} == {64, 128, None}


def test_chunks_of_every_operator_agree():
    cells = ((1, 50), (2, 30))
    found = sweep_chunks((8, 32), cells, rounds=2, progress=lambda message: None)
    assert [(c.batch, c.tokens, c.operator, c.chunk) for c in found] == [
        (*cell, name, q) for cell in cells for name in ("ssd", "wkv7", "mlstm") for q in (8, 32)
    ]
    assert [c.outcome for c in found] == ["ok"] * 12, found
    assert {c.to_dict()["tokens_per_s"]["runs"] for c in found} == {2}
