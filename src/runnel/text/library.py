"""Tokenizers of the tokenizers library (tokenizer.json, or converted from SentencePiece).

`encode`, `encode_batch`, `encode_pieces` and `LibraryStream` give the ids and offsets of one call of the library on the whole
text. Long texts are cut only at places that the tokenizer's own definition proves safe: after a word or closing
mark before a space, after a letter or digit before a newline or a punctuation mark. Memory is in proportion to the longest
stretch between two cuts; a tokenizer whose pipeline is not recognized has none.

The few tokenizers that cannot encode a special token's text as ordinary characters (Unigram vocabularies have "</s>" as a
piece) give the unknown token instead.

`cut_pattern` reads a parsed `tokenizer.json` and returns a pattern whose matches end at such places, or None if no place
can be shown to be safe. The proof follows the pipeline, for a cut between the characters a and b:

added tokens   no token that is matched in text can contain the pair (a, b), so no match crosses the cut;
normalizer     works per character, or on graphemes and combining sequences that never join a with b (the classes of a and b
               below are stable under the Unicode normal forms), or only touches the very ends of a text;
pre-tokenizer  splits at the cut whatever surrounds it: everything it does on the left ends there, everything it does on the
               right starts there. Regular expressions are recognized by their exact text, because a proof needs the text;
model          works inside one pre-token. Without a pre-tokenizer, a BPE model sees the whole text as one word: then no entry
               of the vocabulary may contain (a, b), so no merge can cross.

Some tokenizers treat the start of a text specially (a prefix space, stripping): every later part is encoded together with the
character before the cut, whose tokens are dropped.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from runnel.errors import CheckpointError, InputError, errors_as
from runnel.files import write
from runnel.json_objects import read_model_json
from runnel.records import expect_text, utf8
from runnel.text import sentencepiece
from runnel.text.tokenizer import LIBRARY_FILE, MOST_IDS, WORLD_FILE, Encoded, Marker, Tokenizer, skip_spaces, unpack_saved
from runnel.work import grouped

# ---- safe cuts -------------------------------------------------------------------------------------------------------

Spec = dict[str, Any]  # a parsed JSON object of tokenizer.json

# Letters and digits that stay letters or digits under NFC, NFD, NFKC, NFKD and lower-casing. Marks may follow after NFD.
_WORD = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9"
    "\u0410-\u044f\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
)
_IDEOGRAPH = "\u4e00-\u9fff"
_STABLE = "A-Za-z0-9" + _IDEOGRAPH  # no decomposition at all, so no mark can appear between a and b
_CLOSING = r".,;:!?)\]}%" + '"'  # ends of clauses; no apostrophes, because contractions contain them
# ASCII without ' _ ` and the common CJK marks.
_PUNCT = r"!-&(-/:-@\[-\^{-~" + "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"

_SPACE, _MARK = "space", "mark"  # a cut before a space; before a newline or a punctuation mark
_PATTERNS = {_SPACE: f"[{_WORD}{_IDEOGRAPH}{_CLOSING}](?= )", _MARK: f"[{_STABLE}](?=[\n{_PUNCT}])"}
_BOTH, _NONE = frozenset(_PATTERNS), frozenset[str]()

_HARMLESS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Nmt", "Prepend", "Strip")
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
    """Return a pattern, the end of each of whose matches is a safe cut. None: a text must be encoded in one call."""
    kinds, space = _after_normalizer(spec)
    kinds = _after_pre_tokenizer(spec, kinds, space) & _outside_added_tokens(spec)
    return re.compile("|".join(_PATTERNS[kind] for kind in sorted(kinds))) if kinds else None


def adds_space(spec: Spec) -> bool:
    """Return whether the tokenizer itself puts a space before a text."""
    for part in _normalizers(spec) + _pre_tokenizers(spec):
        kind = part["type"]
        if kind == "Prepend" or (kind == "ByteLevel" and part.get("add_prefix_space", False)):
            return True
        if kind == "Metaspace" and part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space", True):
            return True
    return False


def _normalizers(spec: Spec) -> list[Spec]:
    return _flatten(spec.get("normalizer"), "normalizers")


def _pre_tokenizers(spec: Spec) -> list[Spec]:
    return _flatten(spec.get("pre_tokenizer"), "pretokenizers")


def _flatten(part: Spec | None, key: str) -> list[Spec]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[key] for leaf in _flatten(child, key)]
    return [part]


def _after_normalizer(spec: Spec) -> tuple[frozenset[str], str]:
    """Return the kinds of cuts that survive the normalizer, and what it turns a space into."""
    kinds, space = _BOTH, " "
    for part in _normalizers(spec):
        kind = part["type"]
        if kind == "Precompiled":  # works on graphemes: a space after a letter always starts a new grapheme
            kinds = frozenset([_SPACE])
        elif kind == "Replace" and part["pattern"] in ({"String": " "}, {"Regex": " {2,}"}) and part["content"] == "\u2581":
            space = part["content"]
        elif kind not in _HARMLESS and not (kind == "Replace" and set(part["pattern"].get("String", " ")) <= set("'`")):
            return _NONE, space
    return kinds, space


def _breaks(part: Spec, space: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return (kinds where this pre-tokenizer always splits, kinds that it leaves to the others)."""
    kind, only_space = part["type"], frozenset([_SPACE])
    if kind == "Metaspace":
        split = part.get("split", True) and part.get("replacement", "\u2581") == "\u2581"
        return (only_space if split else _NONE), only_space
    if space != " ":
        return _NONE, _NONE
    if kind in ("BertPreTokenizer", "Whitespace") or (kind == "ByteLevel" and part.get("use_regex", True)):
        return _BOTH, _NONE
    if kind == "WhitespaceSplit":
        return only_space, _NONE
    if kind in ("ByteLevel", "Digits"):
        return _NONE, _BOTH
    if kind == "Punctuation" and part.get("behavior", "Isolated") != "MergedWithNext":
        return _NONE, only_space
    known = kind == "Split" and part["pattern"].get("Regex") in _KNOWN_SPLITS
    return (_BOTH if known and not part.get("invert", False) and part.get("behavior") == "Isolated" else _NONE), _NONE


def _after_pre_tokenizer(spec: Spec, kinds: frozenset[str], space: str) -> frozenset[str]:
    broken, passed = _NONE, kinds
    for part in _pre_tokenizers(spec):
        breaks, leaves = _breaks(part, space)
        broken |= passed & breaks
        passed &= breaks | leaves | broken
        space = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}.get(part["type"], space)
    return broken | (passed & {_SPACE} if _vocabulary_breaks(spec["model"], space) else _NONE)


def _vocabulary_breaks(model: Spec, space: str) -> bool:
    """Return whether no merge of a BPE model can cross a cut before a space."""
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        return False
    if model.get("end_of_word_suffix") or model.get("continuing_subword_prefix"):
        return False
    inner = re.compile(rf"[^\s\u2581\u0120\u010a]{space}")
    # A character outside the vocabulary could be fused with its neighbors into one unknown token.
    return space in model["vocab"] and not any(inner.search(token) for token in model["vocab"])


def _outside_added_tokens(spec: Spec) -> frozenset[str]:
    """Return the kinds of cuts that cannot fall inside an added token that is matched in text."""
    added = spec.get("added_tokens") or []
    matched = [token for token in added if not token.get("special")]
    strips = any(part["type"] == "Strip" for part in _normalizers(spec))
    # Text after a matched token counts as the start of a text, which the one character kept before a cut cannot show.
    starts = (strips or adds_space(spec)) and any(not token["content"].isspace() for token in matched)
    letters = set("".join(token["content"] for token in matched))
    # A special token is not matched, but the search skips its text: this matters where another token could overlap it.
    contents = [token["content"] for token in added if not token.get("special") or letters & set(token["content"])]
    blank_inside = any(re.search(r"[^\s\u2581][\s\u2581]", content) for content in contents)
    if starts or blank_inside or any(token.get("rstrip") for token in matched):
        return _NONE
    other_inside = any(re.search(rf".[{_PUNCT}{_IDEOGRAPH}]|[{_PUNCT}{_IDEOGRAPH}].", content, re.DOTALL) for content in contents)
    return frozenset([_SPACE]) if other_inside else _BOTH


# ---- the tokenizer ---------------------------------------------------------------------------------------------------

_PIECE_CHARS = 1 << 14  # per call of the library: small enough to save memory, long enough to hide the overhead
_GROUP_CHARS = 1 << 18  # one parallel batch


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the tokenizers library, with the attributes of every `Tokenizer`."""

    def __init__(self, source: str, *, begin: Marker = None, end: Marker = None, config: Spec | None = None) -> None:
        """Build from the content of a `tokenizer.json`. `config`: the content of `tokenizer_config.json`, kept for `save`."""
        with _refused(LIBRARY_FILE):
            spec = json.loads(source)
            self._library = tokenizers.Tokenizer.from_str(source)
        if spec["model"].get("dropout"):  # a training option that makes encoding random
            self._library.model.dropout = None
        self._library.post_processor = None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._source, self._config = source, dict(config or {})
        self.vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.vocabulary.values(), default=-1) + 1
        if self.vocab_size > MOST_IDS:
            raise CheckpointError(f"tokenizer.json has the id {self.vocab_size - 1:,}; expected ids below {MOST_IDS:,}")
        model = spec["model"]
        self._unknown: int | None = self.vocabulary.get(model.get("unk_token") or "", model.get("unk_id"))
        self._special = np.zeros(self.vocab_size, dtype=bool)  # ids that text must never become
        special = [token["content"] for token in spec.get("added_tokens") or [] if token.get("special")]
        self._special[[self.vocabulary[token] for token in special]] = True
        if self._unknown is not None:
            self._special[self._unknown] = False
        self.begin_id, self.end_id = self.marker_id(begin), self.marker_id(end)

    @classmethod
    def read(cls, path: Path, *, begin: Marker = None, end: Marker = None) -> LibraryTokenizer:
        """Read a tokenizer.json or a SentencePiece model and, if its folder has them, the files that name its markers."""
        folder = path.parent
        files = (folder / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
        config = {name: value for file in files for name, value in read_model_json(file, default={}).items()}
        if path.suffix == ".json":
            with _refused(path):
                source = path.read_text(encoding="utf-8")
        else:
            source, own = sentencepiece.convert(path)
            config = {**config, **own}
        if begin is None:
            begin = _content(config.get("bos_token")) or _content(config.get("cls_token"))
        if end is None:
            end = _content(config.get("eos_token")) or _content(config.get("sep_token"))
        return cls(source, begin=begin, end=end, config=config)

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` as it was read and a `tokenizer_config.json` that keeps the markers."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / WORLD_FILE).exists():
            raise InputError(f"{folder} holds {WORLD_FILE}, which would be read in place of this tokenizer; use an empty folder")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._config}
        for keys, number in ((("bos_token", "cls_token"), self.begin_id), (("eos_token", "sep_token"), self.end_id)):
            token = None if number is None else self._library.id_to_token(number)
            if token is not None and token != (_content(config.get(keys[0])) or _content(config.get(keys[1]))):
                config[keys[0]] = token
        write(folder / LIBRARY_FILE, self._source)
        write(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n")

    # Only long texts and few templates need these, so the file is parsed again when they are first used.

    @cached_property
    def _cuts(self) -> re.Pattern[str] | None:
        return cut_pattern(json.loads(self._source))

    @cached_property
    def adds_space(self) -> bool:  # type: ignore[override]
        return adds_space(json.loads(self._source))

    def encode(self, text: str) -> Encoded:
        if self._is_long(text):
            return Encoded.join(self.encode_pieces([text]))
        return self._encode_parts([text], [0], [0])[0]

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)

    def encode_inside(self, text: str) -> Encoded:
        if not self.adds_space:
            return self.encode(text)
        encoded = self._encode_parts(["x" + text], [0], [-1])[0]
        first = int(np.count_nonzero(encoded.starts < 0))
        if first and encoded.ends[:first].max() > 0:  # the text's start merged with the text before it
            return self.encode(text)
        return Encoded(encoded.ids[first:], encoded.starts[first:], encoded.ends[first:])

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        done: list[Encoded] = []
        for long, some in itertools.groupby(texts, self._is_long):
            if long:
                done += map(self.encode, some)
            else:
                for group in grouped(some, len, _GROUP_CHARS):
                    done += self._encode_parts(group, [0] * len(group), [0] * len(group))
        return done

    def _is_long(self, text: str) -> bool:
        expect_text(text, "the text")
        return len(text) > 2 * _PIECE_CHARS and self._cuts is not None

    def stream(self, position: int = 0) -> LibraryStream:
        return LibraryStream(self, position)

    def _encode_parts(self, texts: list[str], guards: list[int], bases: list[int]) -> list[Encoded]:
        """Encode texts in one parallel call (the library releases Python's lock).

        Text i begins with `guards[i]` characters of context, whose tokens are dropped; `bases[i]` is the offset after them.
        """
        try:
            encodings = self._library.encode_batch(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                utf8(text)  # says where the surrogate is
            raise
        return [self._unpack(*arguments) for arguments in zip(encodings, texts, guards, bases, strict=True)]

    def _unpack(self, encoding: tokenizers.Encoding, text: str, guard: int, base: int) -> Encoded:
        ids = np.array(encoding.ids, dtype=np.int32)
        if not len(ids):
            return Encoded.empty()
        offsets = np.fromiter(itertools.chain.from_iterable(encoding.offsets), np.int64, 2 * len(ids))  # faster than np.array
        starts, ends = offsets[::2], offsets[1::2]
        if guard:
            first = int(np.count_nonzero(starts < guard))
            assert first == 0 or (ends[:first].max() <= guard), "a token crosses a cut that was considered safe"
            ids, starts, ends = ids[first:], starts[first:], ends[first:]
        for at in np.flatnonzero(self._special[ids]):
            if self._unknown is None:
                raise InputError(
                    f"the text {text[starts[at] : ends[at]]!r} at character {starts[at] - guard + base} is the special token "
                    f"with id {ids[at]} in this tokenizer, which cannot encode it as ordinary text; remove it from the text"
                )
            ids[at] = self._unknown
        starts = skip_spaces(text, starts, ends)
        return Encoded(ids, starts + (base - guard), ends + (base - guard))


class LibraryStream:
    """Text fed piece by piece; see `TokenStream`."""

    def __init__(self, tokenizer: LibraryTokenizer, position: int = 0) -> None:
        self._tokenizer = tokenizer
        self._parts: list[str] = []
        self._before = ""  # the character before `text`; empty at the start of the stream
        self.position = position

    @property
    def text(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def save(self) -> str:
        return json.dumps([self.text, self._before, self.position])

    def restore(self, saved: str) -> None:
        def is_cut(text: str, before: str, _: int) -> bool:
            cut = self._tokenizer._cuts.match(before + text) if self._tokenizer._cuts is not None else None
            return not before or (cut is not None and cut.end() == len(before))  # else tokens could cross it

        text, self._before, self.position = unpack_saved(saved, str, str, int, valid=is_cut)
        self._parts = [text]

    def feed(self, text: str) -> Encoded:
        if not text:
            return Encoded.empty()
        cut = self._last_cut((self._parts[-1][-1:] if self._parts else "") + text)
        self._parts.append(text)
        if cut is None:
            return Encoded.empty()
        whole = self.text
        cut = len(whole) - cut
        done = self._encode(whole[:cut])
        self._before, self._parts = whole[cut - 1], [whole[cut:]]
        self.position += cut
        return done

    def peek(self) -> Encoded:
        return self._encode(self.text)

    def finish(self) -> Encoded:
        done = self.peek()
        self.position += len(self.text)
        self._parts, self._before = [], ""
        return done

    def _last_cut(self, text: str) -> int | None:
        """Return the number of characters after the last safe cut in `text`, or None."""
        pattern = self._tokenizer._cuts
        if pattern is None:
            return None
        for window in (256, len(text)):
            end = None
            for match in pattern.finditer(text, max(0, len(text) - window)):
                end = match.end()
            if end is not None:
                return len(text) - end
        return None

    def _encode(self, text: str) -> Encoded:
        """Encode `text`, which starts at `position`, in pieces cut at safe places."""
        tokenizer, pattern = self._tokenizer, self._tokenizer._cuts
        bounds = [0]
        while pattern is not None and len(text) - bounds[-1] > 2 * _PIECE_CHARS:
            match = pattern.search(text, bounds[-1] + _PIECE_CHARS)
            if match is None or match.end() >= len(text):
                break
            bounds.append(match.end())
        done: list[Encoded] = []
        for first in range(0, len(bounds), _GROUP_CHARS // _PIECE_CHARS):
            starts = bounds[first : first + _GROUP_CHARS // _PIECE_CHARS]
            stops = [*bounds[1:], len(text)][first : first + len(starts)]
            heads = [text[start - 1] if start else self._before for start in starts]
            parts = [head + text[start:stop] for head, start, stop in zip(heads, starts, stops, strict=True)]
            done += tokenizer._encode_parts(parts, [len(head) for head in heads], [self.position + start for start in starts])
        return Encoded.join(done)


def _refused(file: object) -> AbstractContextManager[None]:
    """Turn any error into a CheckpointError: the library raises bare Exception."""
    return errors_as(CheckpointError, f"{file} cannot be read", Exception, advice="expected a file of the tokenizers library")


def _content(token: object) -> str | None:
    """Return the text of a special token, which the files store as a string or as an object."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
