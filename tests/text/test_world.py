"""The RWKV World tokenizer against another implementation, its file format, and streaming in bounded memory."""

import json

import pytest
from helpers.tokenizers_for_tests import build, put_published
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text.test_tokenizer import TEXTS, assert_equal

from runnel.errors import CheckpointError, InputError
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


def test_what_other_programs_register_changes_nothing(tmp_path):
    put_published("rwkv_world", tmp_path)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / file).write_text(json.dumps({"bos_token": "<s>", "eos_token": "\n\n", "add_bos_token": True}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"\n\n": 65530, "<s>": 1}))
    (tmp_path / "tokenizer.json").write_text(build("neox_like")._source)  # somebody's conversion
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.vocab_size, tokenizer.adds_space) == (0, 0, 65530, False)
    assert tokenizer.encode("a\n\n\x00").ids.tolist() == [98, tokenizer.token_id("\n\n"), 1] == [98, 261, 1]
    assert tokenizer.token_id("<|endoftext|>") == 0 and tokenizer.decode([0]) == "<|endoftext|>"
    with pytest.raises(InputError, match="rwkv_vocab"):
        build("neox_like").save(tmp_path)


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


def test_line_ends_of_windows(tmp_path):
    (tmp_path / "rwkv_vocab_v20230424.txt").write_bytes(vocabulary("\r\n", "the ").replace("\n", "\r\n").encode())
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the \r\n").ids.tolist() == [258, 257]
    tokenizer.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "rwkv_vocab_v20230424.txt").read_bytes() == tokenizer._source.encode()


WHOLE = vocabulary().encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (WHOLE + "257 'é' 1\n".encode(), "line 257 "),
        (WHOLE + b"0 'ab' 2\n", "line 257 "),
        (WHOLE + b"2147483648 'ab' 2\n", "line 257 .*2147483648"),
        (WHOLE + b"257 __import__('os') 2\n", "line 257 .*__import__"),
        (WHOLE + b"257 'a' 1\n", "line 257 "),
        (WHOLE + b"97 'ab' 2\n", "several"),
        ("\n".join(BYTES[:200]).encode(), "no tokens"),
        (b"1 '\xff' 1", "not UTF-8"),
        (b"", "line 1 "),
    ],
)
def test_damaged_vocabularies_are_refused(content, named, tmp_path):
    (tmp_path / "rwkv_vocab_v20230424.txt").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"rwkv_vocab_v20230424\.txt.* {named}"):
        Tokenizer.load(tmp_path)
