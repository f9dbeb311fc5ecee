"""SentencePiece models: converted ones give the ids of the sentencepiece library; the rest is refused by name."""

import functools
import io
import random
import struct

import pytest
from helpers.tokenizers_for_tests import CORPUS, build, published_file, put_published
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text.test_tokenizer import TEXTS

from runnel.errors import CheckpointError
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import Tokenizer

RUNS = st.lists(st.sampled_from([" ", "  ", "\u2581", "a", "\n", "\t", "0", "中"]), max_size=80).map("".join)


@functools.cache
def mistral():
    import sentencepiece as library

    return library.SentencePieceProcessor(model_file=str(published_file("mistral_v3")))


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message."""

    def varint(number: int) -> bytes:
        low = number & 127
        return bytes([low]) if number < 128 else bytes([low | 128]) + varint(number >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, kind: int = 1, score: float = 0.0) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind))


def model(*pieces: bytes, trainer: bytes = b"", normalizer: bytes = b"") -> bytes:
    start = [piece("<unk>", 2), piece("<s>", 3), piece("</s>", 3), piece("\u2581"), piece("a"), piece("b")]
    return b"".join([*start, *pieces, field(2, field(3, 2) + trainer), field(3, field(4, 0) + normalizer)])


def read(content: bytes, folder) -> LibraryTokenizer:
    (folder / "tokenizer.model").write_bytes(content)
    return Tokenizer.load(folder)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(TEXTS, RUNS, st.text(st.characters(exclude_categories=["Cs"]), max_size=100)))
@example(text=" " * 37)
@example(text="<s> </s> [INST] <0x0A>")
def test_mistral_ids_equal_the_sentencepiece_library(text):
    assert build("mistral_v3").encode(text).ids.tolist() == mistral().encode(text)


@pytest.mark.parametrize("alphabet", ["ab", "aab", "ab ", "abc ", "a "])
def test_small_vocabularies_equal_the_sentencepiece_library(alphabet, tmp_path):
    """Few letters make many ways to put a piece together."""
    import sentencepiece as library

    chance = random.Random(alphabet)
    made = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(["".join(chance.choices(alphabet, k=chance.randint(5, 60))) for _ in range(60)] + CORPUS),
        model_writer=made,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=5,
    )
    expected, got = library.SentencePieceProcessor(model_proto=made.getvalue()), read(made.getvalue(), tmp_path)
    for _ in range(200):
        text = "".join(chance.choices(alphabet, k=chance.randint(0, 50)))
        assert got.encode(text).ids.tolist() == expected.encode(text)


def test_the_json_is_preferred_and_written(tmp_path):
    put_published("mistral_v3", tmp_path / "model")
    tokenizer = Tokenizer.load(tmp_path / "model")
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.begin_id, again.end_id, again.vocab_size, again.adds_space) == (1, 2, 32768, True)
    text = "x = [1,  2]\n\treturn 'é😀'"
    assert again.encode(text).ids.tolist() == tokenizer.encode(text).ids.tolist()
    (tmp_path / "model" / "tokenizer.json").write_text(build("neox_like")._source)
    assert Tokenizer.load(tmp_path / "model").vocab_size == build("neox_like").vocab_size
    assert not read(model(normalizer=field(3, 0)), tmp_path).adds_space


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (model(trainer=field(3, 1)), "Unigram"),
        (model(normalizer=field(1, b"nmt_nfkc") + field(2, b"\0\0")), "'nmt_nfkc'"),
        (model(normalizer=field(4, 1)), "spaces"),
        (model(piece("ax")), "'x'"),
        (model(piece("  ", 4)), "'  '"),
        (piece("a") + field(2, field(3, 2)) + field(3, field(4, 0)), "unknown token"),
        (b"", "damaged"),
        (b"\x0a\xff\x01a", "damaged"),
        (model()[:-3], "damaged"),
    ],
)
def test_other_kinds_and_damaged_files_are_refused(content, named, tmp_path):
    with pytest.raises(CheckpointError, match=rf"tokenizer\.model .*{named}"):
        read(content, tmp_path)
