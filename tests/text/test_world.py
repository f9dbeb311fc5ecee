"""The RWKV World tokenizer against another implementation, its file format, and streaming in bounded memory."""

import json

import numpy as np
import pytest
from helpers.tokenizers_for_tests import build, put_published
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text.test_tokenizer import TEXTS, assert_equal
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers

from runnel.errors import CheckpointError, InputError
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import Encoded, Tokenizer
from runnel.text.world import WorldTokenizer

BYTES = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)]


def vocabulary(*tokens: str | bytes) -> str:
    """A vocabulary file of all bytes and these tokens, which get the ids from 257."""
    rows = [(number, token, len(token.encode() if isinstance(token, str) else token)) for number, token in enumerate(tokens, 257)]
    return "\n".join([*BYTES, *(f"{number} {token!r} {length}" for number, token, length in rows)]) + "\n"


@pytest.fixture(scope="module")
def oracle():
    import pyrwkv_tokenizer

    return pyrwkv_tokenizer.RWKVTokenizer()


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(TEXTS, st.text(st.characters(exclude_categories=["Cs"]), max_size=200)))
@example(text="\n\n")
@example(text=" " * 300)
@example(text="-" * 200)
def test_ids_equal_the_other_implementation(text, oracle):
    assert build("rwkv_world").encode(text).ids.tolist() == oracle.encode(text)


def test_known_ids():
    tokenizer = build("rwkv_world")
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.vocab_size) == (0, 0, 65530)
    assert not tokenizer.adds_space
    assert tokenizer.encode("\n\n").ids.tolist() == [261] == [tokenizer.token_id("\n\n")]
    assert tokenizer.encode("\x00").ids.tolist() == [1]
    assert tokenizer.token_id("<|endoftext|>") == 0
    assert 0 not in tokenizer.encode("<|endoftext|>").ids


def test_what_other_programs_register_changes_nothing(tmp_path):
    put_published("rwkv_world", tmp_path)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / file).write_text(json.dumps({"bos_token": "<s>", "eos_token": "\n\n", "add_bos_token": True}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"\n\n": 65530, "<s>": 1}))
    (tmp_path / "tokenizer.json").write_text(build("neox_like")._source)  # somebody's conversion
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.encode("a\n\nb").ids.tolist()) == (0, 0, [98, 261, 99])
    with pytest.raises(InputError, match="rwkv_vocab"):
        build("neox_like").save(tmp_path)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_offsets_are_those_of_the_byte_level_tokenizers_of_the_library(text):
    """With single bytes for tokens both cut every character to pieces."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    library = HuggingFaceTokenizer(models.BPE(vocab=alphabet, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs = LibraryTokenizer(library.to_str()).encode(text)
    assert_equal(WorldTokenizer(vocabulary()).encode(text), Encoded(ours_of(text), theirs.starts, theirs.ends))


def ours_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32) + 1


def test_tokens_that_split_characters():
    tokenizer = WorldTokenizer(
        vocabulary("é".encode()[1:] + b" a", "中".encode()[:2], "中".encode()[2:] + "文".encode()[:1], " b")
    )
    text = "é a中文 b"
    encoded = tokenizer.encode(text)
    assert encoded.ids.tolist() == [0xC3 + 1, 257, 258, 259, "文".encode()[1] + 1, "文".encode()[2] + 1, 260]
    assert encoded.starts.tolist() == [0, 0, 3, 3, 4, 4, 6]
    assert encoded.ends.tolist() == [1, 3, 4, 5, 5, 5, 7]
    stream = tokenizer.stream()
    parts = [stream.feed(letter) for letter in text]
    assert (stream.text, stream.position) == (" b", 5)  # a token is known to end once the byte after it is
    assert_equal(Encoded.join([*parts, stream.finish()]), encoded)


def test_a_token_is_given_out_once_nothing_can_change_it():
    tokenizer = WorldTokenizer(vocabulary("ab", "abcd", "ef"))
    stream = tokenizer.stream()
    assert len(stream.feed("abc")) == 0  # "abcd" may come
    assert stream.peek().ids.tolist() == [257, ord("c") + 1]
    assert stream.feed("x").ids.tolist() == [257, ord("c") + 1]
    assert stream.text == "x" and stream.position == 3
    assert stream.feed("e").ids.tolist() == [ord("x") + 1] and stream.finish().starts.tolist() == [4]


def test_a_stream_can_be_saved_inside_a_character():
    tokenizer = WorldTokenizer(vocabulary("中".encode()[:2], "中".encode()[2:] + b"a"))
    stream, again = tokenizer.stream(), tokenizer.stream()
    assert stream.feed("中").ids.tolist() == [257]
    again.restore(stream.save())
    assert again.text == "中" and again.position == 0
    done = Encoded.join([again.feed("a"), again.finish()])
    assert (done.ids.tolist(), done.starts.tolist(), done.ends.tolist()) == ([258], [0], [2])


def test_streaming_takes_constant_memory():
    tokenizer = build("rwkv_world")
    stream, count = tokenizer.stream(), 0
    for _ in range(64):
        count += len(stream.feed(" " * 9_974))  # the longest token is 128 spaces
        assert len(stream.text) <= 128
    assert (count + len(stream.finish()), stream.position) == (9_974 // 2, 64 * 9_974)


def test_lone_surrogates_and_other_types_are_refused():
    tokenizer = WorldTokenizer(vocabulary())
    stream = tokenizer.stream()
    for call in (tokenizer.encode, stream.feed):
        with pytest.raises(InputError, match=r"U\+DC80 .* at character 70000"):
            call("a" * 70_000 + "\udc80")
        with pytest.raises(InputError, match=r"the text is \d+; expected text \(str\)"):
            call(3)
    assert (stream.text, stream.position) == ("", 0)


def test_line_ends_of_windows(tmp_path):
    (tmp_path / "rwkv_vocab_v20230424.txt").write_bytes(vocabulary("\r\n", "the ").replace("\n", "\r\n").encode())
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the \r\n").ids.tolist() == [258, 257]
    tokenizer.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "rwkv_vocab_v20230424.txt").read_bytes() == tokenizer._source.encode()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("257 'é' 1", "line 257 "),
        ("0 'ab' 2", "line 257 "),
        ("2147483648 'ab' 2", "line 257 .*2147483648"),
        ("257 __import__('os') 2", "line 257 .*__import__"),
        ("257 'a' 1", "line 257 "),
        ("97 'ab' 2", "several"),
    ],
)
def test_damaged_vocabularies_are_refused(line, named, tmp_path):
    (tmp_path / "rwkv_vocab_v20230424.txt").write_text(vocabulary() + line + "\n")
    with pytest.raises(CheckpointError, match=rf"rwkv_vocab_v20230424\.txt: .*{named}"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_that_was_cut_short_is_refused(tmp_path):
    path = tmp_path / "rwkv_vocab_v20230424.txt"
    for content in ("\n".join(BYTES[:200]).encode(), b"1 '\xff' 1", b""):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="rwkv_vocab"):
            Tokenizer.load(tmp_path)


def test_decoded_ids_are_the_text():
    tokenizer = WorldTokenizer(vocabulary("ab", "blau", "蓝"))
    for text in ("", "abc blau", "蓝 and ü", "🙂"):
        assert tokenizer.decode(tokenizer.encode(text).ids.tolist()) == text
    assert tokenizer.decode(tokenizer.encode("ü").ids.tolist()[:1]) == "\ufffd"
    assert tokenizer.decode([0]) == "<|endoftext|>"
