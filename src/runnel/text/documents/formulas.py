"""Formulas of Word and PowerPoint files (OMML) in one line: (a+b)/c, x^2, √y."""

import re
from xml.etree.ElementTree import Element

from runnel.text.documents.parts import attribute, tag, walk

# by the name of an element, what stands before and after its content
_SIGNS = {
    "start": {"num": "(", "den": "(", "sup": "^(", "sub": "_(", "rad": "\u221a("}
    | {"d": "(", "nary": "\u222b"},
    "end": {"num": ")/", "den": ") ", "sup": ")", "sub": ")", "rad": ")", "fName": " "}
    | {"d": ")", "mr": "; "},
}
# the property that says the sign, if it is not the usual one
_PROPERTIES = {("start", "d"): "begChr", ("end", "d"): "endChr", ("start", "nary"): "chr"}
# brackets around one value, which it does not need: "x^(2)", "(a)/b"
_ONE_VALUE = re.compile(r"(?<=[/^_\u221a])\((\w*)\)|(?<![\w)])\((\w+)\)(?=/)")


def formula(element: Element) -> str:
    """Return the text of a formula, with brackets around the parts of more than one value."""
    parts: list[str] = []
    for event, part in walk(element, iter, lambda _: False):
        name = tag(part)
        sign = part.find(f"*/{{*}}{_PROPERTIES.get((event, name))}")
        if sign is None:
            parts.append(_SIGNS[event].get(name, ""))
        else:
            parts.append(attribute(sign, "val"))
        if event == "start" and name == "t":
            parts.append(part.text or "")
    text = _ONE_VALUE.sub(lambda match: match[1] or match[2] or "", "".join(parts))
    return " ".join(text.split())
