"""Automatic numbers of Word: computed from word/numbering.xml as a word processor shows them.

Levels count from 0. An abstract definition has up to nine levels; instances (`num`) of the same
definition count on, unless they override its levels.
"""

import re
from functools import cache
from xml.etree.ElementTree import Element, fromstring

from runnel.text.documents.parts import attribute, is_on, value_of

_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")  # in "%1.%2.", the number of a level, counted from 1 here
_NUMBER = re.compile(r"-?\d{1,9}")
_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l")),
    *((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_ONES = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
).split()
_CARDINALS = [  # from 1 to 99
    *_ONES,
    *(
        f"{ten}-{one}".rstrip("-")
        for ten in "twenty thirty forty fifty sixty seventy eighty ninety".split()
        for one in ("", *_ONES[:9])
    ),
]
_ORDINALS = {
    **{"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth"},
    **{"nine": "ninth", "twelve": "twelfth"},
}
# by language and number (0: others), what makes a number an ordinal
_ENDINGS = {
    **{
        (language, 0): "." for language in "de da nb nn no fi is cs sk pl hr sl sr hu et lv".split()
    },
    **{("fr", 1): "er", ("fr", 0): "e", ("nl", 0): "e", ("sv", 0): ":e"},
    **{(language, 0): "\u00ba" for language in ("es", "it", "pt", "gl")},
}
# the lists of Word's own, for numbers inside a paragraph: the forms and the texts of their levels
_LISTS = {
    "numberdefault": ("1ai1ai1ai", "%1) %2) %3) (%4) (%5) (%6) %7. %8. %9."),
    "outlinedefault": ("IA1a1aiai", "%1. %2. %3. %4) (%5) (%6) (%7) (%8) (%9)"),
    "legaldefault": (
        "111111111",
        "%1. %1.%2. %1.%2.%3. %1.%2.%3.%4. %1.%2.%3.%4.%5. %1.%2.%3.%4.%5.%6."
        " %1.%2.%3.%4.%5.%6.%7. %1.%2.%3.%4.%5.%6.%7.%8. %1.%2.%3.%4.%5.%6.%7.%8.%9.",
    ),
}
# signs for forms of numbers: OpenDocument's, and those of `_LISTS`
FORMS = {
    **{"1": "decimal", "a": "lowerLetter", "i": "lowerRoman"},
    **{"A": "upperLetter", "I": "upperRoman"},
}
# a field that is such a number, with the name of its list: "LISTNUM NumberDefault \l 2 \s 3"
_LIST = re.compile(r"LISTNUM\s*\"?([^\"\\]*)", re.IGNORECASE)
_SWITCH = re.compile(r"\\([ls])\s*\"?(\d{1,9})", re.IGNORECASE)
_MOST_ROMAN = 3999  # the highest number in Roman numerals
_MOST_LETTERS = 26 * 5  # the highest in letters: a to z, aa to zz, and on to eeeee


class Numbering:
    """The numbered lists of a document, and how far they are counted."""

    def __init__(self, part: Element | None, language: str = "en") -> None:
        parts = [fromstring(_own_lists()), *(() if part is None else (part,))]
        # by id
        self._abstract = {
            attribute(definition, "abstractNumId"): definition
            for part in parts
            for definition in part.findall("{*}abstractNum")
        }
        self._instances = {
            attribute(num, "numId"): num for part in parts for num in part.findall("{*}num")
        }
        self._linked = {
            style: definition
            for definition in self._abstract.values()
            if (style := value_of(definition, "styleLink"))
        }
        self._named = {
            value_of(self._definition(instance), "name").lower(): instance
            for instance in self._instances
        }
        self._levels_of = cache(self._read_levels)  # each instance is read once
        self._language = language.partition("-")[0].lower()
        # by abstract definition and level, the current number
        self._counts: dict[str, dict[int, int]] = {}
        self._begun: set[tuple[str, int]] = set()  # levels of instances, with their own start

    def level_of(self, instance: str, style: str) -> int | None:
        """Return the level that a paragraph style is linked to; None if there is none."""
        for element in self._definition(instance).findall("{*}lvl"):
            if style and value_of(element, "pStyle") == style:
                return integer(attribute(element, "ilvl"), 0)
        return None

    def next_inside(self, field: str, instance: str, level: int) -> str:
        r"""Count a field in a paragraph, such as "LISTNUM NumberDefault \l 2"; return its number.
        Without a name it is in the paragraph's list, if there is one, one level deeper.

        Args:
            instance: that the paragraph has its number from; "": none.
            level: of the paragraph.
        """
        name = _LIST.split(field)[1].strip().lower()
        switches = dict(_SWITCH.findall(field.lower()))
        if name or not instance:
            instance = self._named.get(name or "numberdefault", "")
            level = -1  # so that the first level is the next one
        depth = int(switches.get("l", level + 2)) - 1
        start = switches.get("s")
        return self.next(instance, depth, None if start is None else int(start))

    def next(self, instance: str, level: int, number: int | None = None) -> str:
        """Count a paragraph; return its number. "" for a bullet, and for an instance or level that
        is not defined. `number`: from which to count on.
        """
        levels, starts = self._levels_of(instance)
        if level not in levels:
            return ""
        definition = attribute(self._definition(instance), "abstractNumId")
        counts = self._counts.setdefault(definition, {})
        override = starts.get(level)
        if number is not None:
            counts[level] = number
        elif level not in counts or (override is not None and (instance, level) not in self._begun):
            counts[level] = _start(levels[level]) if override is None else override
        else:
            counts[level] += 1
        self._begun.add((instance, level))
        for deeper in range(level + 1, _LEVELS):
            restart = integer(value_of(levels.get(deeper), "lvlRestart"), deeper)
            if level < restart:
                counts.pop(deeper, None)
        for above in range(level):
            first = _start(levels[above]) if above in levels else 1
            counts.setdefault(above, first)
        return _shown(levels, counts, level, self._language)

    def _definition(self, instance: str) -> Element:
        """Return the abstract definition of an instance, which has no levels if the file has none.
        One that names a style (numStyleLink) stands for the definition that names the same style as
        its own (styleLink).
        """
        number = value_of(self._instances.get(instance), "abstractNumId")
        definition = self._abstract.get(number, Element("abstractNum"))
        return self._linked.get(value_of(definition, "numStyleLink"), definition)

    def _read_levels(self, instance: str) -> tuple[dict[int, Element], dict[int, int]]:
        """Return the levels of an instance, and the numbers at which some of them begin in it, if
        others.
        """
        overrides = self._instances.get(instance, Element("num")).findall("{*}lvlOverride")
        own = [level for override in overrides for level in override.findall("{*}lvl")]
        levels = [*self._definition(instance).findall("{*}lvl"), *own]
        return {integer(attribute(level, "ilvl"), 0): level for level in levels}, {
            integer(attribute(override, "ilvl"), 0): integer(start, 1)
            for override in overrides
            if (start := value_of(override, "startOverride"))
        }


def _own_lists() -> str:
    """Return `_LISTS` in the form of word/numbering.xml."""
    xml = ""
    for name, (forms, texts) in _LISTS.items():
        levels = "".join(
            f'<lvl w:ilvl="{level}"><start w:val="1"/><numFmt w:val="{FORMS[form]}"/>'
            f'<lvlText w:val="{text}"/></lvl>'
            for level, (form, text) in enumerate(zip(forms, texts.split(), strict=True))
        )
        xml += (
            f'<abstractNum w:abstractNumId="{name}"><name w:val="{name}"/>{levels}</abstractNum>'
            f'<num w:numId="{name}"><abstractNumId w:val="{name}"/></num>'
        )
    return f'<numbering xmlns:w="w">{xml}</numbering>'


def _form(level: Element) -> str:
    """Return the number format of a level; of one of its own, such as "001, 002, 003", the first
    number.
    """
    own = level.find("{*}AlternateContent/{*}Choice/{*}numFmt")
    form = "" if own is None else attribute(own, "format").partition(",")[0]
    return form or value_of(level, "numFmt") or value_of(level, "AlternateContent/Fallback/numFmt")


def _start(level: Element) -> int:
    return integer(value_of(level, "start"), 0)


def integer(text: str, default: int) -> int:
    """Return the number that an attribute holds; `default` if it holds none."""
    return int(text) if _NUMBER.fullmatch(text) else default


def _shown(levels: dict[int, Element], counts: dict[int, int], level: int, language: str) -> str:
    """Return the text of a level with its numbers in place; "" if it is hidden or a bullet."""
    own = levels[level]
    if value_of(own, "numFmt") == "bullet" or is_on(own.find("{*}rPr/{*}vanish")):
        return ""
    decimal = is_on(own.find("{*}isLgl"))  # all numbers are

    def number(match: re.Match[str]) -> str:
        place = int(match[1]) - 1
        form = _form(levels[place]) if place in levels else "decimal"
        if decimal and form not in ("none", "decimalZero"):
            form = "decimal"
        return numeral(counts.get(place, 1), form, language) if place <= level else ""

    return " ".join(_PLACE.sub(number, value_of(own, "lvlText")).split())


def numeral(number: int, form: str, language: str = "en") -> str:
    """Return a number in one of Word's forms; unknown forms, numbers that a form does not reach,
    and numbers in words of other languages than English are decimal. "001" has zeros before it.
    """
    text = str(number)
    if form == "none":
        text = ""
    elif form == "ordinal":
        english = {} if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}
        text += _ENDINGS.get((language, number)) or _ENDINGS.get(
            (language, 0), english.get(number % 10, "th")
        )
    elif form.endswith("Text") and 0 < number <= len(_CARDINALS) and language == "en":
        tens, dash, last = _CARDINALS[number - 1].rpartition("-")
        if form == "ordinalText":
            last = _ORDINALS.get(last, re.sub("y$", "ie", last) + "th")
        text = f"{tens}{dash}{last}".capitalize()
    elif form == "decimalZero":
        text = text.zfill(2)
    elif form.isdecimal():
        text = text.zfill(len(form))
    elif form.endswith("Letter") and 0 < number <= _MOST_LETTERS:
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif form.endswith("Roman") and 0 < number <= _MOST_ROMAN:
        text = ""
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    return text.upper() if form.startswith("upper") else text
