"""Formulas of Word and PowerPoint files (OMML) in one line: (a+b)/c, x^2, √y.

The elements of OMML that are read here; of all others only the content counts:

    num, den: the numerator and the denominator of a fraction
    sup, sub: what is raised and lowered
    rad: a root
    d: brackets
    nary: an integral, a sum, or another large sign
    fName: the name of a function
    mr: a row of a matrix
    t: text
"""

import re
from xml.etree.ElementTree import Element

from runnel.text.documents.parts import attribute, tag, walk

# By the name of an element, what stands before its content ("start") and after it ("end").
_SIGNS = {
    "start": {"num": "(", "den": "(", "sup": "^(", "sub": "_(", "rad": "\u221a("}
    | {"d": "(", "nary": "\u222b"},
    "end": {"num": ")/", "den": ") ", "sup": ")", "sub": ")", "rad": ")", "fName": " "}
    | {"d": ")", "mr": "; "},
}
# The property of an element that says another sign in place of the one in `_SIGNS`.
_PROPERTIES = {("start", "d"): "begChr", ("end", "d"): "endChr", ("start", "nary"): "chr"}
# brackets around one value, which it does not need: "x^(2)", "(a)/b"
_ONE_VALUE = re.compile(r"(?<=[/^_\u221a])\((\w*)\)|(?<![\w)])\((\w+)\)(?=/)")


def formula(element: Element) -> str:
    """Return the text of a formula, with brackets around the parts of more than one value."""
    parts: list[str] = []
    # `iter` gives the children of an element, and none is left out
    for event, part in walk(element, iter, lambda _: False):
        name = tag(part)
        # for an element without such a property, this looks for one named "None", and finds none
        sign = part.find(f"*/{{*}}{_PROPERTIES.get((event, name))}")
        if sign is None:
            parts.append(_SIGNS[event].get(name, ""))
        else:
            parts.append(attribute(sign, "val"))
        if event == "start" and name == "t":
            parts.append(part.text or "")
    text = _ONE_VALUE.sub(lambda match: match[1] or match[2] or "", "".join(parts))
    return " ".join(text.split())
