"""Files are indexed again when they have changed and settled."""

import pytest

from runnel.search.watching import signatures, watch
from runnel.text.folders import EVERYTHING


def watched(looks, results, monkeypatch):
    """Watch with these looks, after which it ends; return the numbers of the looks after which there was an update."""
    seen, results, taken, updates = iter(looks), iter(results), [], []

    def look():
        taken.append(next(seen))
        return {"a": (taken[-1], 0, 0)}

    def update():
        updates.append(len(taken))
        return next(results)

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StopIteration):
        watch(update, look)
    return updates


@pytest.mark.parametrize(
    ("looks", "results", "expected"),
    [
        ([1, 1, 1, 1], [True], [2]),  # once at first
        ([1, 1, 2, 2, 2, 1, 1], [True] * 3, [2, 4, 7]),
        ([1, 1, 2, 3, 4, 4, 4], [True] * 2, [2, 6]),  # a file that is being written is left alone
        ([1, 1, 1, 1], [False, False, True], [2, 3, 4]),  # an update that was not possible is repeated
        ([1, 1, 2, 1, 1], [True], [2]),  # changed back
    ],
)
def test_updates_follow_changes_that_have_settled(looks, results, expected, monkeypatch):
    assert watched(looks, results, monkeypatch) == expected


def test_signatures_show_every_change(tmp_path):
    file = tmp_path / "a.txt"
    states = [signatures([tmp_path, tmp_path / "missing"], EVERYTHING)]
    for change in (lambda: file.write_text("one"), lambda: file.write_text("three"), file.unlink):
        change()
        states.append(signatures([tmp_path, tmp_path / "missing"], EVERYTHING))
    assert states[0] == states[3] == {} and states[1] != states[2] and list(states[1]) == [str(file)]
