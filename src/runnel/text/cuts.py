"""Places where a text may be cut so that tokenizing the parts gives the ids and offsets of tokenizing the whole.

`cut_pattern` reads a parsed `tokenizer.json` and returns a pattern whose matches end at such places, or None if no place
can be shown to be safe. The proof follows the pipeline, for a cut between the characters a and b:

added tokens   no token that is matched in text can contain the pair (a, b), so no match crosses the cut;
normalizer     works per character, or on graphemes and combining sequences that never join a with b (the classes of a and b
               below are stable under the Unicode normal forms), or only touches the very ends of a text;
pre-tokenizer  splits at the cut whatever surrounds it: everything it does on the left ends there, everything it does on the
               right starts there. Regular expressions are recognized by their exact text, because a proof needs the text;
model          works inside one pre-token. Without a pre-tokenizer, a BPE model sees the whole text as one word: then no entry
               of the vocabulary may contain (a, b), so no merge can cross.

Some tokenizers treat the start of a text specially (a prefix space, stripping). `library.py` avoids this: it encodes every
later part together with the character before the cut and drops that character's tokens.
"""

from __future__ import annotations

import re
from typing import Any

Spec = dict[str, Any]  # a parsed JSON object of tokenizer.json

# Letters and digits that stay letters or digits under NFC, NFD, NFKC, NFKD and lower-casing. Marks may follow after NFD.
_WORD = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9"
    "\u0410-\u044f\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
)
_IDEOGRAPH = "\u4e00-\u9fff"
_STABLE = "A-Za-z0-9" + _IDEOGRAPH  # no decomposition at all, so no mark can appear between a and b
_CLOSING = r".,;:!?)\]}%" + '"'  # ends of clauses; no apostrophes, because contractions contain them
_PUNCT = (
    r"!-&(-/:-@\[-\^{-~" + "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)  # ASCII without ' _ ` and the common CJK marks

_SPACE, _NEWLINE, _PUNCTUATION, _ISOLATED, _BLANK = "space", "newline", "punctuation", "isolated", "blank"
_PATTERNS = {
    _SPACE: f"[{_WORD}{_IDEOGRAPH}{_CLOSING}](?= )",
    _NEWLINE: f"[{_STABLE}](?=\n)",
    _PUNCTUATION: f"[{_STABLE}](?=[{_PUNCT}])",
    # In BERT, every ideograph and every punctuation mark is a pre-token of its own.
    _ISOLATED: f"[{_IDEOGRAPH}](?=[{_STABLE}])|[{_PUNCT}](?=[{_STABLE}{_PUNCT}])|[A-Za-z0-9](?=[{_IDEOGRAPH}])",
    _BLANK: "[ \n](?=[ \n])",  # blanks make no tokens at all
}
_BREAKING = {_SPACE, _NEWLINE, _PUNCTUATION}

# Pre-tokenizing expressions whose alternatives never contain a pair (a, b) and look ahead over blanks only.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_KNOWN_SPLITS = frozenset(
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        *(
            head + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            for head in (_CONTRACTIONS, r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
    ]
)


def cut_pattern(spec: Spec) -> re.Pattern[str] | None:
    """Return a pattern for the places where a text may be cut for this tokenizer.

    Args:
        spec: a parsed `tokenizer.json`.

    Returns:
        A pattern: the end of each match is a safe cut. None: the text must be encoded in one call.
    """
    kinds, space = _after_normalizer(spec.get("normalizer"))
    kinds = _after_pre_tokenizer(spec, kinds, space)
    kinds = _after_added_tokens(spec, kinds)
    if not kinds:
        return None
    return re.compile("|".join(_PATTERNS[kind] for kind in sorted(kinds)))


def adds_space(spec: Spec) -> bool:
    """Return whether the tokenizer itself puts a space before a text."""
    parts = _flatten(spec.get("normalizer"), "normalizers") + _flatten(spec.get("pre_tokenizer"), "pretokenizers")
    for part in parts:
        kind = part["type"]
        if kind == "Prepend" or (kind == "ByteLevel" and part.get("add_prefix_space", False)):
            return True
        if kind == "Metaspace" and part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space", True):
            return True
    return False


def whole_word_limit(spec: Spec) -> int | None:
    """Return the length beyond which a word becomes one unknown token (WordPiece after BERT's splitting), else None."""
    model, pre = spec["model"], spec.get("pre_tokenizer") or {}
    bert = pre.get("type") == "BertPreTokenizer" and (spec.get("normalizer") or {}).get("type") in (None, "BertNormalizer")
    if model.get("type") != "WordPiece" or not bert or any(not token.get("special") for token in spec.get("added_tokens") or []):
        return None
    return int(model.get("max_input_chars_per_word", 100))


def _flatten(part: Spec | None, key: str) -> list[Spec]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[key] for leaf in _flatten(child, key)]
    return [part]


def _after_normalizer(normalizer: Spec | None) -> tuple[set[str], str]:
    """Return the kinds of cuts that survive the normalizer, and what it turns a space into."""
    kinds, space = set(_PATTERNS), " "
    parts = _flatten(normalizer, "normalizers")
    for part in parts:
        kind = part["type"]
        if kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Nmt", "Prepend", "Strip"):
            continue
        if kind == "Precompiled":  # works on graphemes: a space or newline after a letter always starts a new grapheme
            kinds &= {_SPACE, _NEWLINE}
        elif kind == "Replace" and part["pattern"] in ({"String": " "}, {"Regex": " {2,}"}) and part["content"] == "\u2581":
            space = part["content"]
        elif kind == "Replace" and set(part["pattern"].get("String", " ")) <= set("'`"):
            continue
        else:
            return set(), space
    # Blanks and ideographs behave as described only with BERT's own normalizer and pre-tokenizer.
    plain_bert = len(parts) == 1 and parts[0]["type"] == "BertNormalizer" and parts[0].get("handle_chinese_chars")
    return (kinds if plain_bert else kinds - {_ISOLATED, _BLANK}), space


def _breaks(part: Spec, space: str) -> tuple[set[str], set[str]]:
    """Return (kinds where this pre-tokenizer always splits, kinds that it leaves to the others)."""
    kind = part["type"]
    if kind == "Metaspace":
        split = part.get("split", True) and part.get("replacement", "\u2581") == "\u2581"
        return ({_SPACE} if split else set()), {_SPACE, _NEWLINE}
    if space != " ":
        return set(), set()
    if kind == "BertPreTokenizer":
        return _BREAKING | {_ISOLATED, _BLANK}, set()
    if kind == "Whitespace" or (kind == "ByteLevel" and part.get("use_regex", True)):
        return set(_BREAKING), set()
    if kind == "WhitespaceSplit":
        return {_SPACE, _NEWLINE}, set()
    if kind == "ByteLevel" or kind == "Digits":
        return set(), set(_BREAKING)
    if kind == "Punctuation" and part.get("behavior", "Isolated") != "MergedWithNext":
        return set(), {_SPACE, _NEWLINE}
    if kind == "Split" and not part.get("invert", False) and part.get("behavior") == "Isolated":
        return (set(_BREAKING) if part["pattern"].get("Regex") in _KNOWN_SPLITS else set()), set()
    return set(), set()


def _after_pre_tokenizer(spec: Spec, kinds: set[str], space: str) -> set[str]:
    parts = _flatten(spec.get("pre_tokenizer"), "pretokenizers")
    if any(part["type"] in ("BertPreTokenizer", "Metaspace") for part in parts) and len(parts) > 1:
        kinds = kinds - {_ISOLATED, _BLANK}
    broken: set[str] = set()
    passed = set(kinds)
    for part in parts:
        breaks, leaves = _breaks(part, space)
        broken |= passed & breaks
        passed &= breaks | leaves | broken
        space = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}.get(part["type"], space)
        if not passed:
            return set()
    unbroken = passed - broken
    return broken | {kind for kind in unbroken if _vocabulary_breaks(spec["model"], kind, space)}


def _vocabulary_breaks(model: Spec, kind: str, space: str) -> bool:
    """Return whether no merge of a BPE model can cross a cut of this kind."""
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        return False
    if model.get("end_of_word_suffix") or model.get("continuing_subword_prefix") or kind not in (_SPACE, _NEWLINE):
        return False
    newline = "\u010a" if space == "\u0120" else "\n"
    right = space if kind == _SPACE else newline
    vocab = model["vocab"]
    # A character outside the vocabulary could be fused with its neighbors into one unknown token.
    known = right in vocab or (right == "\n" and model.get("byte_fallback") and "<0x0A>" in vocab)
    inner = re.compile(rf"[^\s\u2581\u0120\u010a]{right}")
    return bool(known) and not any(inner.search(token) for token in vocab)


def _after_added_tokens(spec: Spec, kinds: set[str]) -> set[str]:
    """Drop the kinds of cuts that could fall inside an added token that is matched in text."""
    added = spec.get("added_tokens") or []
    matched = [token for token in added if not token.get("special")]
    strips = any(part["type"] == "Strip" for part in _flatten(spec.get("normalizer"), "normalizers"))
    # Text after a matched token counts as the start of a text, which the one character kept before a cut cannot show.
    starts = (strips or adds_space(spec)) and any(not token["content"].isspace() for token in matched)
    if starts or any(token.get("rstrip") for token in matched):
        return set()
    if any(token.get("single_word") for token in matched):
        kinds = kinds - {_ISOLATED}
    letters = set("".join(token["content"] for token in matched))
    # A special token is not matched, but the search skips its text: this matters where another token could overlap it.
    contents = [token["content"] for token in added if not token.get("special") or letters & set(token["content"])]
    blank_inside = any(re.search(r"[^\s\u2581][\s\u2581]", content) for content in contents)
    other_inside = any(re.search(rf".[{_PUNCT}{_IDEOGRAPH}]|[{_PUNCT}{_IDEOGRAPH}].", content, re.DOTALL) for content in contents)
    run_inside = any(re.search(r"\s\s", content) for content in contents)
    dropped = {_SPACE, _NEWLINE} if blank_inside else set()
    dropped |= {_PUNCTUATION, _ISOLATED} if other_inside else set()
    dropped |= {_BLANK} if run_inside or blank_inside else set()
    return kinds - dropped
