"""Tokenizers of the tokenizers library (tokenizer.json, or converted from SentencePiece).

`encode`, `encode_batch`, `encode_pieces` and `LibraryStream` give the ids and offsets of one call of the library on the whole
text. Long texts are cut only at places that the tokenizer's own definition proves safe (`cuts.py`): after a word or closing
mark before a space, after a letter or digit before a newline or a punctuation mark. Memory is in proportion to the longest
stretch between two cuts; a tokenizer whose pipeline is not recognized has none.

The few tokenizers that cannot encode a special token's text as ordinary characters (Unigram vocabularies have "</s>" as a
piece) give the unknown token instead.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from runnel.errors import CheckpointError, InputError, errors_as
from runnel.files import write
from runnel.json_objects import read_model_json
from runnel.records import expect_text, utf8
from runnel.text import sentencepiece
from runnel.text.cuts import Spec, adds_space, cut_pattern
from runnel.text.tokenizer import LIBRARY_FILE, MOST_IDS, WORLD_FILE, Encoded, Marker, Tokenizer, skip_spaces, unpack_saved

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
        self._special = self._special_ids(spec)
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
        expect_text(text, "the text")
        if len(text) <= 2 * _PIECE_CHARS or self._cuts is None:
            return self._encode_parts([text], [0], [0])[0]
        return Encoded.join(self.encode_pieces([text]))

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
        waiting: list[str] = []
        chars = 0
        for text in texts:
            expect_text(text, "the text")
            long = len(text) > 2 * _PIECE_CHARS
            waiting += [] if long else [text]
            chars += len(text)
            if chars >= _GROUP_CHARS or long:
                done += self._encode_whole(waiting)
                waiting, chars = [], 0
            done += [self.encode(text)] if long else []
        return done + self._encode_whole(waiting)

    def _encode_whole(self, texts: list[str]) -> list[Encoded]:
        return self._encode_parts(texts, [0] * len(texts), [0] * len(texts))

    def stream(self, position: int = 0) -> LibraryStream:
        return LibraryStream(self, position)

    def _special_ids(self, spec: Spec) -> np.ndarray:
        """Return (vocab_size,) bool: ids that text must never become. The unknown token is allowed."""
        flags = np.zeros(self.vocab_size, dtype=bool)
        special = [token["content"] for token in spec.get("added_tokens") or [] if token.get("special")]
        flags[[self.vocabulary[token] for token in special]] = True
        if self._unknown is not None:
            flags[self._unknown] = False
        return flags

    def _encode_parts(self, texts: list[str], guards: list[int], bases: list[int]) -> list[Encoded]:
        """Encode texts in one parallel call (the library releases Python's lock).

        Text i begins with `guards[i]` characters of context, whose tokens are dropped; `bases[i]` is the offset after them.
        """
        if not texts:
            return []
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
        self._chars = 0
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
        self._parts, self._chars = [text], len(text)

    def feed(self, text: str) -> Encoded:
        if not text:
            return Encoded.empty()
        cut = self._last_cut((self._parts[-1][-1:] if self._parts else "") + text)
        self._parts.append(text)
        self._chars += len(text)
        if cut is None:
            return Encoded.empty()
        whole = self.text
        cut = len(whole) - cut
        done = self._encode(whole[:cut])
        self._before, self._parts, self._chars = whole[cut - 1], [whole[cut:]], len(whole) - cut
        self.position += cut
        return done

    def peek(self) -> Encoded:
        return self._encode(self.text)

    def finish(self) -> Encoded:
        done = self.peek()
        self.position += self._chars
        self._parts, self._chars, self._before = [], 0, ""
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
