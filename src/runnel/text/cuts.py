"""Where a long text may be cut so that a tokenizer of the tokenizers library gives its parts the
ids of the whole.

`cut_pattern` reads a parsed `tokenizer.json` and returns a pattern whose matches end at such
places, or None if no place can be shown to be safe. `LibraryTokenizer.cut` (`text/library.py`) cuts
there. It encodes each part together with the character before the cut, and drops the tokens of that
character: so a part ends with the character a, and the next one is read as a, then b, and so on.
Neither is a blank at the end or the beginning of what is encoded.

The proof follows the pipeline, for a cut between the characters a and b:

added tokens   no token that is matched in text can contain the pair (a, b), so no match crosses the
               cut;
normalizer     works per character, or on graphemes and combining sequences that never join a with b
               (the classes of a and b below are stable under the Unicode normal forms), or only
               touches the very ends of a text: what it adds before a part is dropped with a, and
               there are no blanks to strip;
pre-tokenizer  splits at the cut whatever surrounds it: everything it does on the left ends there,
               everything it does on the right starts there. Regular expressions are recognized by
               their exact text, because a proof needs the text;
model          works inside one pre-token. Without a pre-tokenizer, a BPE model sees the whole text
               as one word: then no entry of the vocabulary may contain (a, b), so no merge can
               cross.
"""

import re
from typing import Any

Spec = dict[str, Any]  # a parsed JSON object of tokenizer.json

# Letters and digits that stay letters or digits under NFC, NFD, NFKC, NFKD and lower-casing.
# Combining marks may follow after NFD.
_WORD = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9"
    "\u0410-\u044f\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
)
_IDEOGRAPH = "\u4e00-\u9fff"
# Characters without a decomposition: no combining mark can appear between a and b.
_STABLE = "A-Za-z0-9" + _IDEOGRAPH
# ends of clauses; no apostrophes, because contractions contain them
_CLOSING = r".,;:!?)\]}%" + '"'
# Punctuation: that of ASCII except ' _ ` and the common Chinese and Japanese marks.
_PUNCT = r"!-&(-/:-@\[-\^{-~" + "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"

# Two kinds of cuts between a and b, by what b is: "space"; or "mark", for a newline or a mark of
# punctuation. Below, a set of kinds passes from step to step, and loses the kinds that may be
# unsafe.
_SPACE = "space"
_MARK = "mark"
_PATTERNS = {_SPACE: f"[{_WORD}{_IDEOGRAPH}{_CLOSING}](?= )", _MARK: f"[{_STABLE}](?=[\n{_PUNCT}])"}
_BOTH = frozenset(_PATTERNS)
_NONE = frozenset[str]()
_ONLY_SPACE = frozenset([_SPACE])

# normalizers that keep both kinds
_HARMLESS = (
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "StripAccents",
    "BertNormalizer",
    "Nmt",
    "Prepend",
    "Strip",
)
# Pre-tokenizing expressions whose alternatives never contain a pair (a, b) and look ahead over
# blanks only.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PROVEN_SPLITS = frozenset(
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        *(
            head
            + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
            + digits
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            for head in (
                _CONTRACTIONS,
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            )
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
    ]
)


def cut_pattern(spec: Spec) -> re.Pattern[str] | None:
    """Return a pattern, the end of each of whose matches is a safe cut. None: a text must be
    encoded in one call.
    """
    kinds, space = _after_normalizer(spec)
    kinds = _after_pre_tokenizer(spec, kinds, space) & _outside_added_tokens(spec)
    return re.compile("|".join(_PATTERNS[kind] for kind in sorted(kinds))) if kinds else None


def adds_space(spec: Spec) -> bool:
    """Return whether the tokenizer itself puts a space before a text."""
    for part in (*_steps(spec.get("normalizer")), *_steps(spec.get("pre_tokenizer"))):
        kind = part["type"]
        if (
            kind == "Prepend"
            or (kind == "ByteLevel" and part.get("add_prefix_space", False))
            or (
                kind == "Metaspace"
                and part.get("prepend_scheme", "always") != "never"
                and part.get("add_prefix_space", True)
            )
        ):
            return True
    return False


def _steps(part: Spec | None) -> list[Spec]:
    """Return the steps of a normalizer or pre-tokenizer as a flat list, without sequences."""
    if part is None or part["type"] != "Sequence":
        return [part] if part else []
    return [
        step
        for child in part.get("normalizers") or part.get("pretokenizers") or ()
        for step in _steps(child)
    ]


def _after_normalizer(spec: Spec) -> tuple[frozenset[str], str]:
    """Return the kinds of cuts that survive the normalizer, and the text that it replaces a space
    with.
    """
    kinds = _BOTH
    space = " "
    for part in _steps(spec.get("normalizer")):
        kind = part["type"]
        # works on graphemes: a space after a letter always starts a new grapheme
        if kind == "Precompiled":
            kinds = _ONLY_SPACE
        elif (
            kind == "Replace"
            and part["pattern"] in ({"String": " "}, {"Regex": " {2,}"})
            and part["content"] == "\u2581"
        ):
            space = part["content"]
        elif kind not in _HARMLESS and not (
            # only quotes; a "Regex" counts as " ", which is none
            kind == "Replace" and set(part["pattern"].get("String", " ")) <= set("'`")
        ):
            return _NONE, space
    return kinds, space


# by the type of a pre-tokenizer, what `_breaks` returns
_BREAKS = {
    "BertPreTokenizer": (_BOTH, _NONE),
    "Whitespace": (_BOTH, _NONE),
    "WhitespaceSplit": (_ONLY_SPACE, _NONE),
    "Digits": (_NONE, _BOTH),
}


def _breaks(part: Spec, space: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kinds of cuts where this pre-tokenizer always splits, and the kinds for which
    other pre-tokenizers decide. A kind in neither set has no proof.
    """
    kind = part["type"]
    # writes spaces as "\u2581", and splits before them
    if kind == "Metaspace":
        split = part.get("split", True) and part.get("replacement", "\u2581") == "\u2581"
        return (_ONLY_SPACE if split else _NONE), _ONLY_SPACE
    # the normalizer or an earlier step has replaced spaces, which the steps below look for
    if space != " ":
        return _NONE, _NONE
    # splits as the first of `_PROVEN_SPLITS`; without it, only writes bytes as letters
    if kind == "ByteLevel":
        return (_BOTH, _NONE) if part.get("use_regex", True) else (_NONE, _BOTH)
    # splits only beside punctuation; where a space begins, other steps decide
    if kind == "Punctuation" and part.get("behavior", "Isolated") != "MergedWithNext":
        return _NONE, _ONLY_SPACE
    isolates = (
        kind == "Split"
        and part["pattern"].get("Regex") in _PROVEN_SPLITS
        and not part.get("invert", False)
        and part.get("behavior") == "Isolated"
    )
    return _BREAKS.get(kind, (_BOTH if isolates else _NONE, _NONE))


def _after_pre_tokenizer(spec: Spec, kinds: frozenset[str], space: str) -> frozenset[str]:
    """Return the kinds of cuts where the pre-tokenizer, or else the vocabulary, always splits. At
    first a space is written as `space`; some pre-tokenizers replace it.
    """
    broken = _NONE  # kinds where a pre-tokenizer so far always splits
    passed = kinds  # kinds that no pre-tokenizer so far has made unsafe
    for part in _steps(spec.get("pre_tokenizer")):
        breaks, leaves = _breaks(part, space)
        broken |= passed & breaks
        # Where a step has split, later steps see the two sides apart, and cannot undo it.
        passed &= breaks | leaves | broken
        # how each writes a space
        space = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}.get(part["type"], space)
    return broken | (passed & _ONLY_SPACE if _vocabulary_breaks(spec["model"], space) else _NONE)


def _vocabulary_breaks(model: Spec, space: str) -> bool:
    """Return whether no merge of a BPE model can cross a cut before a space, written `space`."""
    # with these options a token is not only what merges make of its characters: no proof
    if model.get("type") != "BPE" or any(
        model.get(option)
        for option in ("ignore_merges", "end_of_word_suffix", "continuing_subword_prefix")
    ):
        return False
    # a space after another character; "\u0120" and "\u010a" are a space and a newline as bytes
    inner = re.compile(rf"[^\s\u2581\u0120\u010a]{space}")
    # A character outside the vocabulary could be fused with its neighbors into one unknown token.
    return space in model["vocab"] and not any(inner.search(token) for token in model["vocab"])


def _outside_added_tokens(spec: Spec) -> frozenset[str]:
    """Return the kinds of cuts that cannot fall inside an added token that is matched in text."""
    added = spec.get("added_tokens") or []
    matched = [token for token in added if not token.get("special")]
    strips = any(part["type"] == "Strip" for part in _steps(spec.get("normalizer")))
    # The library takes the text after a matched token for the start of a text, and strips it or
    # adds a space. A part that is cut after the token begins with its last character only, which
    # is no token, so the text after it would be taken for the middle of a text.
    starts = (strips or adds_space(spec)) and any(
        not token["content"].isspace() for token in matched
    )
    letters = set("".join(token["content"] for token in matched))
    # A special token is not matched. But the search for tokens also skips the text of a special
    # token, and so may miss a matched token that overlaps it. So a special token counts if it
    # shares a character with a matched one.
    contents = [
        token["content"]
        for token in added
        if not token.get("special") or letters & set(token["content"])
    ]
    blank_inside = any(re.search(r"[^\s\u2581][\s\u2581]", content) for content in contents)
    if starts or blank_inside or any(token.get("rstrip") for token in matched):
        return _NONE
    # characters that can be b in a cut of the kind "mark", or a, as ideographs can
    other_inside = any(
        re.search(rf".[{_PUNCT}{_IDEOGRAPH}]|[{_PUNCT}{_IDEOGRAPH}].", content, re.DOTALL)
        for content in contents
    )
    return _ONLY_SPACE if other_inside else _BOTH
