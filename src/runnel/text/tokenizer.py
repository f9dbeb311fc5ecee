"""Text to token ids with character offsets, whole or as a stream, in bounded memory.

Exactness. `encode`, `encode_batch`, `encode_pieces` and `TokenStream` give the ids and offsets of one call of the tokenizers
library on the whole text. Long texts are cut only at places where that can be shown from the tokeniser's own definition
(`cuts.py`): after a word or closing mark before a space, after a letter or digit before a newline or a punctuation mark, and
so on. What cannot be cut is kept and encoded in one piece, so a text without any such place (or a tokeniser whose pipeline is
not recognised; `Tokenizer.streams` is False then) costs memory in proportion to the longest stretch between two cuts. One
case is bounded even then: with WordPiece a word over the length limit is one unknown token, so only its ends are kept.

User text is text: strings such as "[SEP]" are encoded as ordinary characters, never as the special token. The few tokenisers
that cannot (Unigram vocabularies hold "</s>" as a piece) give the unknown token instead.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tokenizers

from runnel.errors import CheckpointError, InputError
from runnel.text.cuts import Spec, adds_space, cut_pattern, whole_word_limit
from runnel.text.encoded import Encoded, skip_spaces

_PIECE_CHARS = 1 << 14  # one call of the library: small enough for little memory, long enough to hide the call
_GROUP_CHARS = 1 << 18  # one parallel batch
_WORD_CHARS = 1 << 16  # an unbroken word is looked at again whenever this much of it has come
_KEPT_WORD_CHARS = 1 << 10

Marker = str | int | None


class Tokenizer:
    """A tokeniser of the tokenizers library that adds no special tokens, truncates nothing and pads nothing.

    Attributes:
        begin_id, end_id: the markers of a text's start and end, None where the model has none.
        vocab_size: one more than the largest id, added tokens included.
        adds_space: the tokeniser puts a space in front of a text by itself.
        streams: texts can be cut, so long ones are encoded in bounded memory.
    """

    def __init__(self, source: str, *, begin: Marker = None, end: Marker = None, config: Spec | None = None) -> None:
        """Build from the content of files; `load` reads them from a folder.

        Args:
            source: the content of a `tokenizer.json`.
            begin, end: marker as a token or an id.
            config: the content of `tokenizer_config.json`, kept for `save`.

        Raises:
            CheckpointError: the source is not a tokeniser.
            InputError: a marker is not in the vocabulary.
        """
        try:
            spec = json.loads(source)
            self._library = tokenizers.Tokenizer.from_str(source)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"tokenizer.json cannot be read ({error}); expected a file of the tokenizers library"
            ) from error
        if spec["model"].get("dropout"):  # a training option that makes encoding random
            self._library.model.dropout = None
        self._library.post_processor = None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._source, self._config = source, dict(config or {})
        self._vocab: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        model = spec["model"]
        self._unknown: int | None = self._vocab.get(model.get("unk_token") or "", model.get("unk_id"))
        self._special = self._special_ids(spec)
        self._cuts = cut_pattern(spec)
        self._word_limit = whole_word_limit(spec)
        self.adds_space = adds_space(spec)
        self.begin_id = None if begin is None else self._marker(begin)
        self.end_id = None if end is None else self._marker(end)

    @classmethod
    def load(cls, folder: str | Path, *, begin: Marker = None, end: Marker = None) -> Tokenizer:
        """Read `tokenizer.json` and, where present, `tokenizer_config.json` and `special_tokens_map.json` of a model folder.

        Args:
            folder: a local model folder.
            begin, end: markers that replace those of the folder's files (bos or cls token, eos or sep token).

        Raises:
            CheckpointError: no `tokenizer.json`, or a file is damaged.
            InputError: a marker is not in the vocabulary.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"no tokenizer.json in {folder}; expected a model folder with the tokenizers library's file")
        config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
        if begin is None:
            begin = _content(config.get("bos_token")) or _content(config.get("cls_token"))
        if end is None:
            end = _content(config.get("eos_token")) or _content(config.get("sep_token"))
        return cls(path.read_text(encoding="utf-8"), begin=begin, end=end, config=config)

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` as it was read and a `tokenizer_config.json` that keeps the markers."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._config}
        for keys, number in ((("bos_token", "cls_token"), self.begin_id), (("eos_token", "sep_token"), self.end_id)):
            token = None if number is None else self._library.id_to_token(number)
            if token is not None and token != (_content(config.get(keys[0])) or _content(config.get(keys[1]))):
                config[keys[0]] = token
        (folder / "tokenizer.json").write_text(self._source, encoding="utf-8")
        text = json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    @property
    def streams(self) -> bool:
        """Whether long texts can be cut, so that they are encoded in bounded memory."""
        return self._cuts is not None

    def token_id(self, token: str) -> int:
        """The id of one token, special ones included.

        Raises:
            InputError: no such token; the message names the nearest.
        """
        number = self._vocab.get(token)
        if number is None:
            near = difflib.get_close_matches(token, [name for name in self._vocab if len(name) < 40], n=1)
            hint = f"; the nearest is {near[0]!r}" if near else ""
            raise InputError(f"no token {token!r} in this tokeniser's vocabulary of {len(self._vocab)}{hint}")
        return number

    def encode(self, text: str) -> Encoded:
        """Ids and offsets of a text of any length. No special tokens are added.

        Raises:
            InputError: the text holds a lone surrogate, or a special token's text that this tokeniser can encode in no other way.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is of type {type(text).__name__}; expected str (encode_batch takes several)")
        if self._cuts is None or len(text) <= 2 * _PIECE_CHARS:
            return self._encode_parts([text], [0], [0])[0]
        return Encoded.join(self.encode_pieces([text]))

    def encode_inside(self, text: str) -> Encoded:
        """As `encode`, but as if other text stood before: no space is put in front by the tokeniser."""
        if not self.adds_space:
            return self.encode(text)
        encoded = self._encode_parts(["x" + text], [0], [-1])[0]
        first = int(np.count_nonzero(encoded.starts < 0))
        if first and encoded.ends[:first].max() > 0:  # the text's start became one token with what stands before
            return self.encode(text)
        return Encoded(encoded.ids[first:], encoded.starts[first:], encoded.ends[first:])

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        """`encode` of every text, on all cores."""
        done: list[Encoded] = []
        waiting: list[str] = []
        chars = 0
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"a text is of type {type(text).__name__}; expected str")
            if len(text) > 2 * _PIECE_CHARS:
                done += self._encode_parts(waiting, [0] * len(waiting), [0] * len(waiting))
                done.append(self.encode(text))
                waiting, chars = [], 0
                continue
            waiting.append(text)
            chars += len(text)
            if chars >= _GROUP_CHARS:
                done += self._encode_parts(waiting, [0] * len(waiting), [0] * len(waiting))
                waiting, chars = [], 0
        return done + self._encode_parts(waiting, [0] * len(waiting), [0] * len(waiting))

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Encoded]:
        """Encode a text that comes in pieces, cut anywhere, in bounded memory.

        Yields:
            Tokens in order; the offsets refer to the joined text. Joined, they equal `encode` of the joined text.
        """
        stream = TokenStream(self)
        waiting: list[str] = []
        chars = 0
        for piece in pieces:
            for start in range(0, len(piece), _GROUP_CHARS):
                part = piece[start : start + _GROUP_CHARS]
                waiting.append(part)
                chars += len(part)
                if chars >= _GROUP_CHARS:
                    yield from _nonempty(stream.feed("".join(waiting)))
                    waiting, chars = [], 0
        yield from _nonempty(stream.feed("".join(waiting)))
        yield from _nonempty(stream.finish())

    def stream(self, position: int = 0) -> TokenStream:
        """A stream of text that is fed bit by bit. `position` is the offset of its first character."""
        return TokenStream(self, position)

    def _marker(self, marker: str | int) -> int:
        if isinstance(marker, str):
            return self.token_id(marker)
        if not 0 <= marker < self.vocab_size:
            raise InputError(f"marker id {marker} is outside the vocabulary of {self.vocab_size}; give a token or a smaller id")
        return marker

    def _special_ids(self, spec: Spec) -> np.ndarray:
        """(vocab_size,) bool: ids that text must never turn into. The unknown token stays allowed."""
        flags = np.zeros(self.vocab_size, dtype=bool)
        flags[[token["id"] for token in spec.get("added_tokens") or [] if token.get("special")]] = True
        if self._unknown is not None:
            flags[self._unknown] = False
        return flags

    def _encode_parts(self, texts: list[str], guards: list[int], bases: list[int]) -> list[Encoded]:
        """Encode texts in one parallel call (the library lets go of Python's lock).

        Args:
            texts: each begins with `guards[i]` characters of context, whose tokens are dropped.
            bases: offset of the first character after the context.
        """
        if not texts:
            return []
        try:
            encodings = self._library.encode_batch(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _unencodable(texts, error) from error
        return [self._unpack(*arguments) for arguments in zip(encodings, texts, guards, bases, strict=True)]

    def _unpack(self, encoding: tokenizers.Encoding, text: str, guard: int, base: int) -> Encoded:
        ids = np.array(encoding.ids, dtype=np.int32)
        if not len(ids):
            return Encoded.empty()
        offsets = np.array(encoding.offsets, dtype=np.int64)
        starts, ends = offsets[:, 0], offsets[:, 1]
        if guard:
            first = int(np.count_nonzero(starts < guard))
            assert first == 0 or (ends[:first].max() <= guard), "a token crosses a cut that was taken for safe"
            ids, starts, ends = ids[first:], starts[first:], ends[first:]
        for at in np.flatnonzero(self._special[ids]):
            if self._unknown is None:
                raise InputError(
                    f"the text {text[starts[at] : ends[at]]!r} at character {starts[at] - guard + base} is the special token "
                    f"with id {ids[at]} in this tokeniser, which cannot encode it as ordinary text; remove it from the text"
                )
            ids[at] = self._unknown
        starts = skip_spaces(text, starts, ends)
        return Encoded(ids, starts + (base - guard), ends + (base - guard))


class TokenStream:
    """Text fed bit by bit. Tokens come out as soon as no later text can change them.

    Attributes:
        text: what was fed but not yet given out as tokens, short unless the text has no place to cut.
        position: offset of the first character of `text`.
    """

    def __init__(self, tokenizer: Tokenizer, position: int = 0) -> None:
        self._tokenizer = tokenizer
        self._parts: list[str] = []
        self._chars = 0
        self._checked = 0
        self._before = ""  # the character before `text`; empty at the start of the stream
        self._word_start: int | None = None  # `text` goes on with an unknown word that started here
        self.position = position

    @property
    def text(self) -> str:
        """The fed text that is not yet tokens."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def save(self) -> str:
        """All that is needed to go on later, as JSON text; `restore` takes it back."""
        return json.dumps([self.text, self._before, self.position, self._word_start])

    def restore(self, saved: str) -> None:
        """Go on where `save` was called."""
        text, self._before, self.position, self._word_start = json.loads(saved)
        self._parts, self._chars, self._checked = [text], len(text), 0

    def feed(self, text: str) -> Encoded:
        """Add text; returns the tokens that are final now, with offsets into the whole stream."""
        if not text:
            return Encoded.empty()
        cut = self._last_cut((self._parts[-1][-1:] if self._parts else "") + text)
        self._parts.append(text)
        self._chars += len(text)
        if cut is None:
            return self._shorten_word()
        whole = self.text
        cut = len(whole) - cut
        done = self._encode(whole[:cut])
        self._before, self._parts, self._chars, self._checked = whole[cut - 1], [whole[cut:]], len(whole) - cut, 0
        self._word_start = None
        self.position += cut
        return done

    def peek(self) -> Encoded:
        """The tokens of `text` if the stream ended here. The stream goes on unchanged."""
        return self._encode(self.text)

    def finish(self) -> Encoded:
        """The last tokens. The stream is empty afterwards and starts anew at its end."""
        done = self.peek()
        self.position += self._chars
        self._parts, self._chars, self._checked, self._before, self._word_start = [], 0, 0, "", None
        return done

    def _last_cut(self, text: str) -> int | None:
        """Characters after the last safe cut in `text`, or None."""
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
        """Tokens of `text`, which starts at `position`, in pieces cut at safe places."""
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
        joined = Encoded.join(done)
        if self._word_start is not None and len(joined):
            joined.starts[0] = self._word_start
        return joined

    def _shorten_word(self) -> Encoded:
        """Forget the middle of an over-long word, which is one unknown token whatever follows (WordPiece only)."""
        limit = self._tokenizer._word_limit
        if limit is None or self._chars < self._checked + _WORD_CHARS:
            return Encoded.empty()
        self._checked = self._chars
        whole = self.text
        kept = whole[-max(_KEPT_WORD_CHARS, 8 * limit) :]
        library = self._tokenizer._library
        normal = library.normalizer.normalize_str(kept) if library.normalizer else kept
        if [part for part, _ in library.pre_tokenizer.pre_tokenize_str(normal)] != [normal] or len(normal) <= limit:
            return Encoded.empty()
        done = self._encode(whole)
        self._word_start = int(done.starts[-1])
        self.position += len(whole) - len(kept)
        self._parts, self._chars, self._checked, self._before = [kept], len(kept), 0, ""
        return Encoded(done.ids[:-1], done.starts[:-1], done.ends[:-1])


def _nonempty(encoded: Encoded) -> Iterator[Encoded]:
    if len(encoded):
        yield encoded


def _unencodable(texts: list[str], error: Exception) -> InputError:
    for text in texts:
        found = re.search("[\ud800-\udfff]", text)
        if found:
            code = f"U+{ord(found[0]):04X}"
            advice = "read the file with the right encoding, or replace it by text.encode('utf-8', 'replace').decode()"
            return InputError(f"the text holds {code} (half of a surrogate pair) at character {found.start()}; {advice}")
    return InputError(f"the text cannot be encoded: {error}")


def _read_json(path: Path) -> Spec:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download the folder again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected an object")
    return content


def _content(token: object) -> str | None:
    """The text of a special token, which the files hold as a string or as an object."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
