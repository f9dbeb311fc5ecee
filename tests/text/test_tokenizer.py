"""Tokenizing, whatever the kind: streams equal one call, special tokens stay text, offsets, saving."""

import ast
import functools
import json
import unicodedata

import numpy as np
import pytest
import tokenizers
from helpers.tokenizers_for_tests import BUILDERS, PUBLISHED, build, small_pieces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from runnel.errors import CheckpointError, InputError
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import Encoded, Tokenizer, skip_spaces
from runnel.text.world import WorldTokenizer

WORDS = (
    "the|dog|isn't|'s|they've|café|cafe\u0301|naïve|İ|ß|ŉ|1234|5|2024|。|，|今天|天气|ひら|が|か\u3099|한국|각|привет|мир|"
    "ελληνικός|😀|👩\u200d👩\u200d👧|\u0301|\u200b|\ufeff|\u00a0|\u2028|\x85|\x1c|\x01|\x7f|[SEP]|</s>|<s>|(|)|.|,|;|:|!|?|"
    "-|--|===|_|`|\"|'|~|xxxxxxxxxxxxxxxxxxxxxx|\u2581|\u0d4e|ⅷ|①|ﬁ|x΄|§|+|=|\u0338|/|@|#"
)
BLANKS = [" ", " ", " ", " ", "  ", "   ", " " * 90, "\n", "\n\n", "\r\n", "\t", "\r", "a ", " b", ". ", ", ", ".\n", "x\n"]
FRAGMENTS = st.sampled_from([*WORDS.split("|"), "|", "<|endoftext|>", *BLANKS])
TEXTS = st.one_of(st.lists(FRAGMENTS, max_size=40).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
NAMES = pytest.mark.parametrize("name", sorted([*BUILDERS, *PUBLISHED]))


def whole(tokenizer: Tokenizer, text: str) -> Encoded:
    """One call of the library; for the World tokenizer its definition, letter by letter."""
    if not isinstance(tokenizer, WorldTokenizer):
        return tokenizer._encode_parts([text], [0], [0])[0]
    tokens, data, rows, at = world_tokens(tokenizer), text.encode(), [], 0
    character = [number for number, letter in enumerate(text) for _ in letter.encode()]  # of every byte
    while at < len(data):
        stop = next(stop for stop in range(min(len(data), at + 128), at, -1) if data[at:stop] in tokens)
        rows.append((tokens[data[at:stop]], character[at], character[stop - 1] + 1))
        at = stop
    ids, starts, ends = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((), (), ())))
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
def test_any_cutting_gives_the_ids_of_one_call(name, text, sizes):
    tokenizer = build(name)
    expected = whole(tokenizer, text)
    pieces, position = [], 0
    while position < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[position : position + size])
        position += size
    with small_pieces():
        assert_equal(tokenizer.encode(text), expected)
        assert_equal(Encoded.join(tokenizer.encode_pieces(pieces)), expected)
        stream, parts = tokenizer.stream(), []
        for number, piece in enumerate(pieces):
            parts.append(stream.feed(piece))
            if number % 3 == 0:  # what peek says is what the text would give if it ended here
                assert_equal(Encoded.join([*parts, stream.peek()]), whole(tokenizer, "".join(pieces[: number + 1])))
        assert_equal(Encoded.join([*parts, stream.finish()]), expected)
        assert stream.position == len(text)


@NAMES
def test_long_texts_are_cut_where_cuts_are_known(name):
    tokenizer = build(name)
    stream = tokenizer.stream()
    stream.feed("the quick brown fox jumps over the lazy dog. " * 20)
    assert (len(stream.text) < 20) == (name != "scripts")


@pytest.mark.parametrize("unit", ["a", "a b ", "a,b", "===", "今天", " ", "\n"])
def test_a_long_line_equals_one_call(unit):
    tokenizer = build("bert_like")
    text = (unit * 100_000)[:100_001]
    assert_equal(tokenizer.encode(text), whole(tokenizer, text))


@NAMES
def test_batches_equal_single_calls(name):
    tokenizer = build(name)
    texts = ["", "the dog", " ", "long words " * 5000, "[SEP] x", "\n", "quick"]
    batch = tokenizer.encode_batch(iter(texts))
    assert len(batch) == len(texts)
    for text, encoded in zip(texts, batch, strict=True):
        assert_equal(encoded, whole(tokenizer, text))
    assert tokenizer.encode_batch([]) == []


@NAMES
def test_special_tokens_in_a_text_are_ordinary_text(name):
    tokenizer = build(name)
    marks = ["[SEP]", "[CLS]", "<|endoftext|>", "<s>", "</s>", "[INST]", "[REFERENCE_DOC_1]", "[control_500]"]
    special = {tokenizer.vocabulary[token] for token in marks if token in tokenizer.vocabulary}
    assert not set(tokenizer.encode(" a ".join(marks)).ids.tolist()) & special


def test_a_special_token_that_cannot_be_avoided_is_unknown_or_an_error():
    tokenizer = build("unigram")
    ids = tokenizer.encode("a </s>").ids.tolist()
    assert tokenizer.token_id("</s>") not in ids and tokenizer.token_id("<unk>") in ids
    library = tokenizers.Tokenizer(models.BPE(vocab={"<s>": 0, "a": 1, "<": 2, "s": 3, ">": 4}, merges=[], ignore_merges=True))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<s>"])
    with pytest.raises(InputError, match=r"'<s>' at character 2 is the special token .* remove it"):
        LibraryTokenizer(library.to_str()).encode("a <s>")


@NAMES
@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_offsets_lie_in_the_text_and_start_at_words(name, text):
    encoded = build(name).encode(text)
    assert ((encoded.starts >= 0) & (encoded.starts <= encoded.ends) & (encoded.ends <= len(text))).all()
    for start, end in zip(encoded.starts.tolist(), encoded.ends.tolist(), strict=True):
        token = text[start:end]
        assert not token[:1].isspace() or token.isspace()


def test_offsets_are_code_points():
    text = "😀 café dog"
    for name in ("neox_like", "bert_like", "sentencepiece_like", *sorted(PUBLISHED)):
        encoded = build(name).encode(text)
        assert text[encoded.starts[-1] : encoded.ends[-1]] == "dog"[-(encoded.ends[-1] - encoded.starts[-1]) :]
        assert encoded.ends[-1] == len(text)


def test_inside_adds_no_space():
    tokenizer = build("sentencepiece_like")
    assert tokenizer.adds_space and not build("neox_like").adds_space
    joint = tokenizer.encode("dog the")
    assert_equal(Encoded.join([tokenizer.encode("dog"), tokenizer.encode_inside(" the").shifted(3)]), joint)
    assert len(tokenizer.encode(" the")) > len(tokenizer.encode_inside(" the"))


def test_lone_surrogates_and_other_types_are_refused():
    bert, world = build("bert_like"), build("rwkv_world")
    stream = world.stream()
    for encode in (bert.encode, lambda text: bert.encode_batch(["a", text]), world.encode, stream.feed):
        with pytest.raises(InputError, match=r"U\+D800 .* at character 70000"):
            encode("a" * 70_000 + "\ud800")
        with pytest.raises(InputError, match=r"the text is 3; expected text \(str\)"):
            encode(3)
    assert (stream.text, stream.position) == ("", 0)


@pytest.mark.parametrize("name", ["neox_like", "rwkv_world"])
def test_decoding_markers_and_parts_of_characters(name):
    tokenizer = build(name)
    assert tokenizer.decode([tokenizer.token_id("<|endoftext|>")]) == "<|endoftext|>"
    assert tokenizer.decode(tokenizer.encode("\U0001f9ff").ids.tolist()[:1]).endswith("\ufffd")


def test_markers_and_names():
    tokenizer = build("bert_like")
    assert tokenizer.begin_id == tokenizer.token_id("[CLS]") and tokenizer.end_id == tokenizer.token_id("[SEP]")
    assert build("neox_like").begin_id is None
    with pytest.raises(InputError, match=r"'\[SEPP\]'.* \[SEP\]"):
        tokenizer.token_id("[SEPP]")
    with pytest.raises(InputError, match="marker id 99999"):
        LibraryTokenizer(tokenizer._source, end=99999)


def test_save_and_load(tmp_path):
    tokenizer = LibraryTokenizer(build("neox_like")._source, end="<|endoftext|>")
    tokenizer.save(tmp_path / "model")
    again = Tokenizer.load(tmp_path / "model")
    assert (again.begin_id, again.end_id, again.vocab_size) == (None, tokenizer.end_id, tokenizer.vocab_size)
    assert (tmp_path / "model" / "tokenizer.json").read_text() == tokenizer._source
    assert_equal(again.encode("the dog"), tokenizer.encode("the dog"))
    Tokenizer.load(tmp_path / "model", begin=3, end=4).save(tmp_path / "other")
    other = Tokenizer.load(tmp_path / "other")
    assert (other.begin_id, other.end_id) == (3, 4)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_vocabularies_are_saved_and_loaded(name, tmp_path):
    tokenizer = build(name)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path, begin=tokenizer.begin_id, end=tokenizer.end_id)
    for kept in ("__class__", "vocab_size", "vocabulary", "begin_id", "end_id"):
        assert getattr(again, kept) == getattr(tokenizer, kept)
    text = "Les rivières — 今天天气很好。\n\n\tx = 12345;   y 😀"
    assert_equal(again.encode(text), tokenizer.encode(text))


@NAMES
@settings(max_examples=20, deadline=None)
@given(text=TEXTS, cut=st.integers(0, 200))
def test_a_saved_stream_goes_on(name, text, cut):
    tokenizer = build(name)
    stream = tokenizer.stream(7)
    first = stream.feed(text[:cut])
    again = tokenizer.stream()
    again.restore(stream.save())
    second = [again.feed(text[cut:]), again.finish()]
    assert_equal(Encoded.join([first, *second]), whole(tokenizer, text).shifted(7))
    assert (again.position, again.text) == (7 + len(text), "")


def test_damaged_folders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)
    good = build("bert_like")._source
    for tokenizer, config, file in (("{", "{}", "tokenizer.json"), (good, "[]", "tokenizer_config.json"), (good, "{", "config")):
        (tmp_path / "tokenizer.json").write_text(tokenizer)
        (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(CheckpointError, match=file):
            Tokenizer.load(tmp_path)


def test_padding_truncation_and_dropout_of_the_file_are_off():
    spec = json.loads(build("neox_like")._source)
    spec["model"]["dropout"] = 0.9
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    library.enable_truncation(2)
    library.enable_padding(length=9)
    assert_equal(LibraryTokenizer(library.to_str()).encode("the dog jumps"), build("neox_like").encode("the dog jumps"))


@pytest.mark.parametrize("name", ["neox_like", "cl100k_like", "rwkv_world"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_decoded_ids_are_the_text(name, text):
    """As the tokenizer normalizes it: NeoX's to composed characters."""
    tokenizer = build(name)
    expected = unicodedata.normalize("NFC", text) if name == "neox_like" else text
    assert tokenizer.decode(tokenizer.encode(text).ids.tolist()) == expected
