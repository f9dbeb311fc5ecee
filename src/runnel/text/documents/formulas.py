"""Formulas of Word and PowerPoint files (OMML) in one line: (a+b)/c, x^2, √y."""

import re
from xml.etree.ElementTree import Element

from runnel.text.documents.parts import attribute, tag, walk

# by the name of an element, what stands before and after its content
_BEGINS = {"num": "(", "den": "(", "sup": "^(", "sub": "_(", "rad": "\u221a("}
_ENDS = {"num": ")/", "den": ") ", "sup": ")", "sub": ")", "rad": ")", "fName": " ", "mr": "; "}
# of these the file says the sign, if it is not the usual one
_SIGNS = {"d": ("begChr", "("), "nary": ("chr", "\u222b")}
# brackets around one value, which it does not need: "x^(2)", "(a)/b"
_ONE_VALUE = re.compile(r"(?<=[/^_\u221a])\((\w*)\)|(?<![\w)])\((\w+)\)(?=/)")


def formula(element: Element) -> str:
    """Return the text of a formula, with brackets around the parts of more than one value."""
    parts: list[str] = []
    for event, part in walk(element, lambda _: False):
        name = tag(part)
        if event == "end" and name == "d":
            parts.append(_sign(part, "endChr", ")"))
        elif event == "end":
            parts.append(_ENDS.get(name, ""))
        elif name in _SIGNS:
            parts.append(_sign(part, *_SIGNS[name]))
        elif name == "t":
            parts.append(part.text or "")
        else:
            parts.append(_BEGINS.get(name, ""))
    text = _ONE_VALUE.sub(lambda match: match[1] or match[2] or "", "".join(parts))
    return " ".join(text.split())


def _sign(element: Element, name: str, usual: str) -> str:
    sign = element.find(f"*/{{*}}{name}")
    return usual if sign is None else attribute(sign, "val")
