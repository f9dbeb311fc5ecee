"""The tables of docs/scale.md are those that the script makes of the measured numbers."""

import re

import pytest

from tools import scale_arithmetic as scale


@pytest.mark.parametrize("name", ["plan", "storage"])
def test_the_page_has_the_tables_of_the_script(name):
    (found,) = re.findall(rf"(?s)<!-- {name} -->\n(.*?)\n<!-- end -->", scale.PAGE.read_text(encoding="utf-8"))
    assert found == getattr(scale, name)(), "run python -m tools.scale_arithmetic --write"
