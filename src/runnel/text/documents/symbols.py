"""Characters of symbol fonts, whose codes are not Unicode: Symbol, Wingdings, Wingdings 2,
Wingdings 3 and Webdings. The readers of Word and of other office files ask for their text
`in_unicode`.
"""

import re

# Symbol from 0x20 to 0x7e and from 0xa0 to 0xfe, one character for each code.
_SYMBOL_LOW = (
    " !\u2200#\u2203%&\u220b()\u2217+,\u2212./0123456789:;<=>?\u2245\u0391\u0392\u03a7\u0394\u0395"
    "\u03a6\u0393\u0397\u0399\u03d1\u039a\u039b\u039c\u039d\u039f\u03a0\u0398\u03a1\u03a3\u03a4"
    "\u03a5\u03c2\u03a9\u039e\u03a8\u0396[\u2234]\u22a5_\u203e\u03b1\u03b2\u03c7\u03b4\u03b5\u03c6"
    "\u03b3\u03b7\u03b9\u03d5\u03ba\u03bb\u03bc\u03bd\u03bf\u03c0\u03b8\u03c1\u03c3\u03c4\u03c5"
    "\u03d6\u03c9\u03be\u03c8\u03b6{|}\u223c"
)
_SYMBOL_HIGH = (
    "\u20ac\u03d2\u2032\u2264\u2044\u221e\u0192\u2663\u2666\u2665\u2660\u2194\u2190\u2191\u2192"
    "\u2193\u00b0\u00b1\u2033\u2265\u00d7\u221d\u2202\u2022\u00f7\u2260\u2261\u2248\u2026\u23d0"
    "\u23af\u21b5\u2135\u2111\u211c\u2118\u2297\u2295\u2205\u2229\u222a\u2283\u2287\u2284\u2282"
    "\u2286\u2208\u2209\u2220\u2207\u00ae\u00a9\u2122\u220f\u221a\u22c5\u00ac\u2227\u2228\u21d4"
    "\u21d0\u21d1\u21d2\u21d3\u25ca\u2329\u00ae\u00a9\u2122\u2211\u239b\u239c\u239d\u23a1\u23a2"
    "\u23a3\u23a7\u23a8\u23a9\u23aa\ufffd\u232a\u222b\u2320\u23ae\u2321\u239e\u239f\u23a0\u23a4"
    "\u23a5\u23a6\u23ab\u23ac\u23ad"
)
# the order of directions in which fonts have arrows of a form
_ARROWS = "\u2190\u2192\u2191\u2193\u2196\u2197\u2199\u2198"
# by the font in lower case: the character of each code
_TABLES = {
    "symbol": dict(enumerate(_SYMBOL_LOW, start=0x20)) | dict(enumerate(_SYMBOL_HIGH, start=0xA0)),
    "wingdings": {
        **dict(
            enumerate("\u24ea\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468\u2469", 0x80)
        ),
        **dict(
            enumerate("\u24ff\u2776\u2777\u2778\u2779\u277a\u277b\u277c\u277d\u277e\u277f", 0x8B)
        ),
        **dict(enumerate("\u261c\u261e\u261d\u261f", 0x45)),  # hands
        **dict(enumerate("\u263a\U0001f610\u2639", 0x4A)),  # faces
        **dict(enumerate(_ARROWS, 0xDF)),
        **dict(enumerate("\u21e6\u21e8\u21e7\u21e9\u2b04", 0xEF)),
        **dict(enumerate("\u2717\u2713\u2612\u2611", 0xFB)),
        **{
            0x20: " ",
            0x22: "\u2702",
            0x28: "\u260e",
            0x2A: "\u2709",
            0x6C: "\u25cf",
            0x6E: "\u25a0",
        },
        **{0x6F: "\u2610", 0x71: "\u2751", 0x72: "\u2752", 0x73: "\u2b27", 0x74: "\u29eb"},
        **{0x75: "\u25c6", 0x76: "\u2756", 0x78: "\u2612", 0x9E: "\u00b7", 0x9F: "\u2022"},
        **{0xA1: "\u25cb", 0xA7: "\u25aa", 0xA8: "\u2610", 0xAB: "\u2605", 0xD8: "\u27a2"},
    },
    "wingdings 2": {
        **dict(enumerate("\u2717\u2713\u2612\u2611", 0x4F)),
        **{0x20: " ", 0x2A: "\u2610", 0x53: "\u2612", 0x54: "\u2612", 0x97: "\u25cf"},
        **{0x98: "\u25cf", 0xA2: "\u25a0", 0xA3: "\u2610"},
    },
    # arrows of all forms, long or with a bar, are plain arrows
    "wingdings 3": {
        **{
            code + n: arrow
            for code in (0x21, 0x66, 0xD1, 0xD9, 0xE1, 0xE9)
            for n, arrow in enumerate(_ARROWS)
        },
        **{
            code + n: arrow
            for code in (0x29, *range(0x85, 0xA2, 4), 0xB5, 0xBD, 0xC1, 0xC5)
            for n, arrow in enumerate(_ARROWS[:4])
        },
        **dict(enumerate("\u25b2\u25bc\u25b3\u25bd\u25c0\u25b6\u25c1\u25b7", 0x70)),
        **dict(enumerate("\u25e3\u25e2\u25e4\u25e5\u25c0\u25b6\u25b2", 0x78)),
        **dict(enumerate("\u25bc\u25b2\u25bc\u25c0\u25b6", 0x80)),
        **{0x20: " ", 0x31: "\u2194", 0x32: "\u2195", 0x6E: "\u2194", 0x6F: "\u2195"},
        **{0x50: "\u21bb", 0x51: "\u21ba"},
    },
    "webdings": {0x20: " ", 0x61: "\u2713", 0x63: "\u2610", 0x67: "\u25a0", 0x72: "\u2717"},
}
# Unicode's private area for the codes 0 to 255 of these fonts
_PRIVATE_CODE = re.compile("[\uf000-\uf0ff]")
_CODE = re.compile("[\0-\xff\uf000-\uf0ff]")  # the codes, in the private area or as they are
UNKNOWN = "\ufffd"


def in_unicode(text: str, font: str, symbols: str = "") -> str:
    """Return a text in which the codes of symbol fonts are characters of Unicode, or U+FFFD if they
    are unknown.

    Args:
        font: of the text, "" if the document names none. If it is a symbol font, all characters
            below 256 are its codes, and so are U+F000 to U+F0FF. In other fonts only U+F000 to
            U+F0FF are codes.
        symbols: the font of the codes, if `font` is no symbol font. With "", they are of `font`,
            whose codes are all unknown, or of Symbol, if there is none either.
    """
    name = font.strip().lower()
    table = name if name in _TABLES else symbols.strip().lower() or name or "symbol"

    def unicode_of(match: re.Match[str]) -> str:
        return _TABLES.get(table, {}).get(ord(match[0]) & 0xFF, UNKNOWN)

    codes = _CODE if name in _TABLES else _PRIVATE_CODE
    return codes.sub(unicode_of, text)
