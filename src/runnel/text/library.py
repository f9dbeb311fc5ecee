"""Tokenizers of the tokenizers library: token ids with character offsets from any
`tokenizer.json`, also of texts that come in pieces.

`Tokenizer` says what each method promises. Here a text that is long, or comes in pieces, is cut at
safe places (`cuts.py`) and each part is encoded by the library. What a stream keeps of the text
before (its context) is the one character before the cut.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from runnel.batching import grouped
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError, errors_as
from runnel.files import write
from runnel.text.cuts import Spec, adds_space, cut_pattern
from runnel.text.tokenizer import (
    GROUP_CHARS,
    LIBRARY_FILE,
    MOST_IDS,
    WORLD_FILE,
    Encoded,
    Marker,
    Tokenizer,
    expect_readable,
    skip_spaces,
)

# Characters of one call of the library: few enough to save memory, enough to hide the call's
# overhead.
_PIECE_CHARS = 1 << 14


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the tokenizers library (tokenizer.json).

    `encode`, `encode_batch`, `encode_pieces` and streams give the ids and offsets that one call of
    the library on the whole text gives. Long texts are cut only where `cuts.cut_pattern` shows it
    to be safe. Memory grows with the longest stretch between two cuts; a tokenizer whose pipeline
    is not recognized encodes every text whole.

    The few tokenizers that cannot encode a special token's text as ordinary characters (Unigram
    vocabularies have "</s>" as a piece) give the unknown token instead. Some treat the start of a
    text specially (a prefix space, stripping): every later part is encoded together with the
    character before the cut, whose tokens are dropped.
    """

    start = ""  # the context at the start of a text

    def __init__(
        self, source: str, *, begin: Marker = None, end: Marker = None, config: Spec | None = None
    ) -> None:
        """Build from the content of a `tokenizer.json`. `config`: the content of
        `tokenizer_config.json`, kept for `save`.
        """
        with _readable(LIBRARY_FILE):
            spec = json.loads(source)
            self._library = tokenizers.Tokenizer.from_str(source)
        if spec["model"].get("dropout"):  # a training option that makes encoding random
            self._library.model.dropout = None
        self._library.post_processor = None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._source = source
        self._config = dict(config or {})
        self.vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.vocabulary.values(), default=-1) + 1
        if self.vocab_size > MOST_IDS:
            raise CheckpointError(
                f"tokenizer.json has the id {self.vocab_size - 1:,}; expected ids below"
                f" {MOST_IDS:,}"
            )
        model = spec["model"]
        self._unknown: int | None = self.vocabulary.get(
            model.get("unk_token") or "", model.get("unk_id")
        )
        self._special = np.zeros(self.vocab_size, dtype=bool)  # ids that text must never become
        special = [
            token["content"] for token in spec.get("added_tokens") or [] if token.get("special")
        ]
        self._special[[self.vocabulary[token] for token in special]] = True
        if self._unknown is not None:
            self._special[self._unknown] = False
        self.begin_id = self.marker_id(begin)
        self.end_id = self.marker_id(end)

    @classmethod
    def read(cls, path: Path, *, begin: Marker = None, end: Marker = None) -> "LibraryTokenizer":
        """Read a tokenizer.json and, if its folder has them, the files that name its markers."""
        folder = path.parent
        files = (folder / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
        config = {
            name: value
            for file in files
            for name, value in read_model_json(file, default={}).items()
        }
        with _readable(path):
            source = path.read_text(encoding="utf-8")
        if begin is None:
            begin = _content(config.get("bos_token")) or _content(config.get("cls_token"))
        if end is None:
            end = _content(config.get("eos_token")) or _content(config.get("sep_token"))
        return cls(source, begin=begin, end=end, config=config)

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` as it was read and a `tokenizer_config.json` that keeps the
        markers.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / WORLD_FILE).exists():
            raise InputError(
                f"{folder} holds {WORLD_FILE}, which would be read in place of this tokenizer; use"
                " an empty folder"
            )
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._config}
        for keys, number in (
            (("bos_token", "cls_token"), self.begin_id),
            (("eos_token", "sep_token"), self.end_id),
        ):
            token = None if number is None else self._library.id_to_token(number)
            if token is not None and token != (
                _content(config.get(keys[0])) or _content(config.get(keys[1]))
            ):
                config[keys[0]] = token
        write(folder / LIBRARY_FILE, self._source)
        write(
            folder / "tokenizer_config.json",
            json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n",
        )

    # Only long texts and few templates need these, so the file is parsed again when they are first
    # used.

    @cached_property
    def _cuts(self) -> re.Pattern[str] | None:
        return cut_pattern(json.loads(self._source))

    @cached_property
    def adds_space(self) -> bool:  # type: ignore[override]
        return adds_space(json.loads(self._source))

    def cut(self, text: str, context: str, *, final: bool) -> tuple[Encoded, int, str]:
        """Encode the text up to its last safe cut, or to its end if no text follows (`final`), in
        pieces cut at safe places; return (tokens, characters encoded, the next context). The
        context is the character before the text, empty at its start.
        """
        stop = len(text) if final else self._last_cut(text)
        bounds = [0]  # where the pieces begin
        while stop - bounds[-1] > 2 * _PIECE_CHARS and self._cuts is not None:
            match = self._cuts.search(text, bounds[-1] + _PIECE_CHARS)
            if match is None or match.end() >= stop:
                break
            bounds.append(match.end())
        done: list[Encoded] = []
        for first in range(0, len(bounds), GROUP_CHARS // _PIECE_CHARS):
            starts = bounds[first : first + GROUP_CHARS // _PIECE_CHARS]
            stops = [*bounds[1:], stop][first : first + len(starts)]
            heads = [text[start - 1] if start else context for start in starts]
            parts = [
                head + text[start:end]
                for head, start, end in zip(heads, starts, stops, strict=True)
            ]
            done += self._encode_parts(parts, [len(head) for head in heads], starts)
        return Encoded.join(done), stop, text[stop - 1] if stop else context

    def may_cut(self, text: str) -> bool:
        """Return whether a stream can encode something of what has come."""
        return self._last_cut(text) > 0

    def _last_cut(self, text: str) -> int:
        """Return the last place where `text` can be cut; 0 for none."""
        if self._cuts is None:
            return 0
        for window in (256, len(text)):
            matches = self._cuts.finditer(text, max(0, len(text) - window))
            if end := max((match.end() for match in matches), default=0):
                return end
        return 0

    def is_context(self, context: str, text: str) -> bool:
        """Return whether a stored stream's context may stand before this text: a cut is safe
        between them.
        """
        if not context:
            return True
        cut = None if self._cuts is None else self._cuts.match(context + text)
        # otherwise tokens could cross the cut
        return cut is not None and cut.end() == len(context)

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)

    def encode_inside(self, text: str) -> Encoded:
        """Encode a text that follows other text, for tokenizers that add a space to a text's start:
        with an "x" before it, whose token is dropped.
        """
        if not self.adds_space:
            return self.encode(text)
        # the offsets of the text begin at 0, and the "x" before it has offset -1
        encoded = self._encode_parts(["x" + text], [0], [-1])[0]
        first = int(np.count_nonzero(encoded.starts < 0))
        # a token has characters of the context and of the text
        if first and encoded.ends[:first].max() > 0:
            return self.encode(text)
        return Encoded(encoded.ids[first:], encoded.starts[first:], encoded.ends[first:])

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        done: list[Encoded] = []
        for long, run in itertools.groupby(texts, self._is_long):
            if long:
                done += map(self.encode, run)
            else:
                for group in grouped(run, len, GROUP_CHARS):
                    done += self._encode_parts(group, [0] * len(group), [0] * len(group))
        return done

    def _is_long(self, text: str) -> bool:
        expect_readable(text)
        return len(text) > 2 * _PIECE_CHARS and self._cuts is not None

    def _encode_parts(self, texts: list[str], guards: list[int], bases: list[int]) -> list[Encoded]:
        """Encode texts in one parallel call (the library releases Python's lock).

        Text i begins with `guards[i]` characters of context, whose tokens are dropped; `bases[i]`
        is the offset after them.
        """
        encodings = self._library.encode_batch(texts, add_special_tokens=False)
        return [
            self._unpack(*arguments)
            for arguments in zip(encodings, texts, guards, bases, strict=True)
        ]

    def _unpack(self, encoding: tokenizers.Encoding, text: str, guard: int, base: int) -> Encoded:
        ids = np.array(encoding.ids, dtype=np.int32)
        if not len(ids):
            return Encoded.empty()
        # faster than np.array
        offsets = np.fromiter(
            itertools.chain.from_iterable(encoding.offsets), np.int64, 2 * len(ids)
        )
        starts = offsets[::2]
        ends = offsets[1::2]
        if guard:
            first = int(np.count_nonzero(starts < guard))
            assert first == 0 or (ends[:first].max() <= guard), (
                "a token crosses a cut that was considered safe"
            )
            ids = ids[first:]
            starts = starts[first:]
            ends = ends[first:]
        for at in np.flatnonzero(self._special[ids]):
            if self._unknown is None:
                raise InputError(
                    f"the text {text[starts[at] : ends[at]]!r} at character"
                    f" {starts[at] - guard + base} is the special token {ids[at]}, never ordinary"
                    " text here; remove it"
                )
            ids[at] = self._unknown
        starts = skip_spaces(text, starts, ends)
        return Encoded(ids, starts + (base - guard), ends + (base - guard))


def _readable(file: object) -> AbstractContextManager[None]:
    """Turn errors of the tokenizers library, which raises bare Exception, into ours."""
    return errors_as(
        CheckpointError,
        f"{file} cannot be read",
        Exception,
        advice="expected a file of the tokenizers library",
    )


def _content(token: object) -> str | None:
    """Return the text of a special token, which the files store as a string or as an object."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
