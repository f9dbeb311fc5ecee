"""Tokenizing, whatever the kind: streams equal one call, special tokens stay
text, offsets, saving.
"""

import ast
import functools
import json
import unicodedata

import numpy as np
import pytest
import tokenizers
from helpers.files import write_files
from helpers.texts import repeat
from helpers.tokenizers_for_tests import BUILDERS, PUBLISHED, build, small_pieces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from runnel.errors import CheckpointError, InputError
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import Encoded, Tokenizer, skip_spaces
from runnel.text.tokenizers import read_tokenizer
from runnel.text.world import WorldTokenizer

WORDS = (
    "the|dog|isn't|'s|they've|café|cafe\u0301|naïve|İ|ß|ŉ|1234|5|2024|。|，"
    "|今天|天气|ひら|が|か\u3099|한국|각|привет|мир|"
    "ελληνικός|😀|👩\u200d👩\u200d👧|\u0301|\u200b|\ufeff|\u00a0|\u2028|\x85|\x1c|\x01|\x7f|[SEP]|</s>|<s>|(|)|.|,|;|:|!|?|"
    "-|--|===|_|`|\"|'|~|xxxxxxxxxxxxxxxxxxxxxx|\u2581|\u0d4e|ⅷ|①|ﬁ|x΄|§|+|=|\u0338|/|@|#"
)
BLANKS = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "   ",
    repeat(" ", 90),
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\r",
    "a ",
    " b",
    ". ",
    ", ",
    ".\n",
    "x\n",
]
FRAGMENTS = st.sampled_from([*WORDS.split("|"), "|", "<|endoftext|>", *BLANKS])
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=40).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
NAMES = pytest.mark.parametrize("name", sorted([*BUILDERS, *PUBLISHED]))


def whole(tokenizer: Tokenizer, text: str) -> Encoded:
    """One call of the library; for the World tokenizer its definition, letter by letter."""
    if not isinstance(tokenizer, WorldTokenizer):
        return tokenizer._encode_parts([text], [0], [0])[0]
    tokens = world_tokens(tokenizer)
    data = text.encode()
    rows = []
    at = 0
    # of every byte
    character = [number for number, letter in enumerate(text) for _ in letter.encode()]
    while at < len(data):
        stop = next(
            stop for stop in range(min(len(data), at + 128), at, -1) if data[at:stop] in tokens
        )
        rows.append((tokens[data[at:stop]], character[at], character[stop - 1] + 1))
        at = stop
    ids, starts, ends = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((), (), ()))
    )
    return Encoded(ids.astype(np.int32), skip_spaces(text, starts, ends), ends)


@functools.cache
def world_tokens(tokenizer: WorldTokenizer) -> dict[bytes, int]:
    lines = (line.rstrip().split(" ", 1) for line in tokenizer._source.splitlines())
    values = ((ast.literal_eval(rest.rsplit(" ", 1)[0]), int(number)) for number, rest in lines)
    return {value.encode() if isinstance(value, str) else value: number for value, number in values}


def assert_equal(got: Encoded, expected: Encoded) -> None:
    assert got.ids.dtype == np.int32 and got.starts.dtype == np.int64 and got.ends.dtype == np.int64
    np.testing.assert_array_equal(got.ids, expected.ids)
    np.testing.assert_array_equal(got.starts, expected.starts)
    np.testing.assert_array_equal(got.ends, expected.ends)


@NAMES
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@example(text="", sizes=[1])
@example(text="x ΄ y", sizes=[1])
@example(text="a.  \n b", sizes=[3])
@example(text=repeat(" ", 300) + repeat("-", 200), sizes=[9])
def test_any_cutting_gives_the_ids_of_one_call(name, text, sizes):
    tokenizer = build(name)
    expected = whole(tokenizer, text)
    for start, end in zip(expected.starts.tolist(), expected.ends.tolist(), strict=True):
        assert 0 <= start <= end <= len(text) and (
            not text[start:end][:1].isspace() or text[start:end].isspace()
        )
    pieces = []
    position = 0
    while position < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[position : position + size])
        position += size
    with small_pieces():
        assert_equal(tokenizer.encode(text), expected)
        assert_equal(Encoded.join(tokenizer.encode_pieces(pieces)), expected)
        stream = tokenizer.stream()
        parts = []
        for number, piece in enumerate(pieces):
            parts.append(stream.feed(piece))
            if number % 3 == 0:  # what peek says is what the text would give if it ended here
                assert_equal(
                    Encoded.join([*parts, stream.peek()]),
                    whole(tokenizer, "".join(pieces[: number + 1])),
                )
                saved = stream.save()
                stream = tokenizer.stream()
                stream.restore(saved)
        assert_equal(Encoded.join([*parts, stream.finish()]), expected)
        assert (stream.position, stream.text) == (len(text), "")
        # it continues
        assert_equal(
            Encoded.join([stream.feed(text), stream.finish()]), expected.shifted(len(text))
        )


@NAMES
def test_long_texts_batches_and_special_tokens_which_are_ordinary_text(name):
    tokenizer = build(name)
    stream = tokenizer.stream()
    stream.feed(repeat("the quick brown fox jumps over the lazy dog. ", 20))
    assert (len(stream.text) < 20) == (name != "scripts")
    for unit in ("a", "a b ", "a,b", "===", "今天", " ", "\n") if name == "bert_like" else ():
        text = (unit * 50_000)[:50_001]
        assert_equal(tokenizer.encode(text), whole(tokenizer, text))
    texts = ["", "the dog", " ", repeat("long words ", 5000), "[SEP] x", "\n", "quick"]
    batch = tokenizer.encode_batch(iter(texts))
    assert len(batch) == len(texts)
    for text, encoded in zip(texts, batch, strict=True):
        assert_equal(encoded, whole(tokenizer, text))
    assert tokenizer.encode_batch([]) == []
    encoded = tokenizer.encode("😀 café dog")
    assert encoded.ends[-1] == len("😀 café dog") and "dog".endswith(
        "😀 café dog"[encoded.starts[-1] :]
    )
    marks = [
        "[SEP]",
        "[CLS]",
        "<|endoftext|>",
        "<s>",
        "</s>",
        "[INST]",
        "[REFERENCE_DOC_1]",
        "[control_500]",
    ]
    assert not set(tokenizer.encode(" a ".join(marks)).ids.tolist()) & {
        tokenizer.vocabulary[token] for token in marks if token in tokenizer.vocabulary
    }


def test_a_special_token_that_cannot_be_avoided_is_unknown_or_an_error():
    tokenizer = build("unigram")
    ids = tokenizer.encode("a </s>").ids.tolist()
    assert tokenizer.token_id("</s>") not in ids and tokenizer.token_id("<unk>") in ids
    library = tokenizers.Tokenizer(
        models.BPE(vocab={"<s>": 0, "a": 1, "<": 2, "s": 3, ">": 4}, merges=[], ignore_merges=True)
    )
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<s>"])
    with pytest.raises(InputError, match=r"'<s>' at character 2 is the special token .* remove it"):
        LibraryTokenizer(library.to_str()).encode("a <s>")


def test_markers_names_and_texts_that_are_refused():
    tokenizer = build("bert_like")
    assert tokenizer.begin_id == tokenizer.token_id(
        "[CLS]"
    ) and tokenizer.end_id == tokenizer.token_id("[SEP]")
    assert build("neox_like").begin_id is None
    with pytest.raises(InputError, match=r"'\[SEPP\]'.* \[SEP\]"):
        tokenizer.token_id("[SEPP]")
    with pytest.raises(InputError, match="marker id 99999"):
        LibraryTokenizer(tokenizer._source, end=99999)
    bert = build("bert_like")
    world = build("rwkv_world")
    stream = world.stream()
    for encode in (
        bert.encode,
        lambda text: bert.encode_batch(["a", text]),
        world.encode,
        stream.feed,
    ):
        with pytest.raises(InputError, match=r"U\+D800 .* at character 70000"):
            encode(repeat("a", 70_000) + "\ud800")
        with pytest.raises(InputError, match=r"the text is 3; expected text \(str\)"):
            encode(3)
    assert (stream.text, stream.position) == ("", 0)


@pytest.mark.parametrize("name", [*sorted(PUBLISHED), "neox_like"])
def test_vocabularies_are_saved_and_loaded(name, tmp_path):
    tokenizer = (
        build(name)
        if name in PUBLISHED
        else LibraryTokenizer(build(name)._source, end="<|endoftext|>")
    )
    tokenizer.save(tmp_path / "model")
    markers = {"begin": tokenizer.begin_id, "end": tokenizer.end_id} if name in PUBLISHED else {}
    again = read_tokenizer(tmp_path / "model", **markers)
    for kept in (
        "__class__",
        "adds_space",
        "vocab_size",
        "vocabulary",
        "begin_id",
        "end_id",
        "_source",
    ):
        assert getattr(again, kept) == getattr(tokenizer, kept)
    text = "Les rivières — 今天天气很好。\n\n\tx = 12345;   y 😀"
    assert_equal(again.encode(text), tokenizer.encode(text))
    if name == "neox_like":
        read_tokenizer(tmp_path / "model", begin=3, end=4).save(tmp_path / "other")
        other = read_tokenizer(tmp_path / "other")
        assert (other.begin_id, other.end_id) == (3, 4)


def test_damaged_folders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=f"{tmp_path} has no tokenizer"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(
        CheckpointError,
        match=r"needs tokenizer\.json, because tokenizer\.model is not read; .*save_pretrained",
    ):
        read_tokenizer(tmp_path)
    good = build("bert_like")._source
    for tokenizer, config, file in (
        ("{", "{}", "tokenizer.json"),
        (good, "[]", "tokenizer_config.json"),
        (good, "{", "config"),
    ):
        write_files(tmp_path, {"tokenizer.json": tokenizer, "tokenizer_config.json": config})
        with pytest.raises(CheckpointError, match=file):
            read_tokenizer(tmp_path)


def test_padding_truncation_and_dropout_of_the_file_are_off():
    spec = json.loads(build("neox_like")._source)
    spec["model"]["dropout"] = 0.9
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    library.enable_truncation(2)
    library.enable_padding(length=9)
    assert_equal(
        LibraryTokenizer(library.to_str()).encode("the dog jumps"),
        build("neox_like").encode("the dog jumps"),
    )


@pytest.mark.parametrize("name", ["neox_like", "cl100k_like", "rwkv_world"])
@settings(deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_decoded_ids_are_the_text(name, text):
    """As the tokenizer normalizes it: NeoX's to composed characters."""
    tokenizer = build(name)
    expected = unicodedata.normalize("NFC", text) if name == "neox_like" else text
    assert tokenizer.decode(tokenizer.encode(text).ids.tolist()) == expected
    assert tokenizer.decode([tokenizer.token_id("<|endoftext|>")]) == "<|endoftext|>"
    # a part of a character
    assert tokenizer.decode(tokenizer.encode("\U0001f9ff").ids.tolist()[:1]).endswith("\ufffd")


# ---- the RWKV World tokenizer --------------------------------------------------------------------

BYTES = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)]


def vocabulary(*tokens: str | bytes) -> str:
    """A vocabulary file of all bytes and these tokens, which get the ids from 257."""
    rows = [
        (number, token, len(token.encode() if isinstance(token, str) else token))
        for number, token in enumerate(tokens, 257)
    ]
    return (
        "\n".join([*BYTES, *(f"{number} {token!r} {length}" for number, token, length in rows)])
        + "\n"
    )


def test_what_other_programs_register_and_line_ends_of_windows_change_nothing(tmp_path):
    build("rwkv_world").save(tmp_path)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / file).write_text(
            json.dumps({"bos_token": "<s>", "eos_token": "\n\n", "add_bos_token": True})
        )
    write_files(
        tmp_path,
        {
            "added_tokens.json": json.dumps({"\n\n": 65530, "<s>": 1}),
            "tokenizer.json": build("neox_like")._source,  # somebody's conversion
        },
    )
    tokenizer = read_tokenizer(tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.vocab_size, tokenizer.adds_space) == (
        0,
        0,
        65530,
        False,
    )
    assert (
        tokenizer.encode("a\n\n\x00").ids.tolist()
        == [98, tokenizer.token_id("\n\n"), 1]
        == [98, 261, 1]
    )
    assert tokenizer.token_id("<|endoftext|>") == 0 and tokenizer.decode([0]) == "<|endoftext|>"
    with pytest.raises(InputError, match="rwkv_vocab"):
        build("neox_like").save(tmp_path)
    windows = vocabulary("\r\n", "the ").replace("\n", "\r\n").encode()
    write_files(tmp_path, {"windows/rwkv_vocab_v20230424.txt": windows})
    tokenizer = read_tokenizer(tmp_path / "windows")
    assert tokenizer.encode("the \r\n").ids.tolist() == [258, 257]
    tokenizer.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "rwkv_vocab_v20230424.txt").read_bytes() == windows


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
        read_tokenizer(tmp_path)
