"""The tables of docs/scale.md are those that the script makes of the measured numbers."""

import re

import pytest

from tools import scale_arithmetic as scale


@pytest.mark.parametrize("name", ["plan", "storage"])
def test_the_page_has_the_tables_of_the_script(name):
    (found,) = re.findall(rf"(?s)<!-- {name} -->\n(.*?)\n<!-- end -->", scale.PAGE.read_text(encoding="utf-8"))
    assert found == getattr(scale, name)(), "run python -m tools.scale_arithmetic --write"


def test_hours_are_sums(monkeypatch):
    found = {"commit_documents": 10, "commit_seconds": [[0, 1.0], [100, 3.0]]}
    monkeypatch.setattr(scale, "costs", lambda: found)
    one_by_one = sum(1.0 + there * 2.0 / 100 for there in range(0, 5000, 10))
    assert scale.filling_hours(5000) * 3600 == pytest.approx(one_by_one, rel=0.01)
    monkeypatch.setattr(scale, "rate", lambda model: 1300.0)
    assert scale.hours(7200, "pocket-mamba2") == 2.0
