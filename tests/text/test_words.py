"""Words for BM25, in scripts with and without spaces."""

import re
import unicodedata

import bm25s
import pytest
from helpers.children import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.text.words import (
    _UNSPACED,
    compound_parts,
    numbered_words,
    unspaced_words,
    with_parts,
    words_of,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("北京大学", ["北京", "京大", "大学"]),
        ("水。木", ["水", "木"]),  # alone between other characters
        ("新宿にある", ["新宿", "宿に", "にあ", "ある"]),
        ("人々", ["人々"]),
        ("ที่นี่", ["ที่นี่"]),  # two letters with two marks each
        ("ພາສາ", ["ພາ", "າສ", "ສາ"]),
        ("ខ្មែរ", ["ខ្មែ", "មែរ"]),  # the sign below a letter is a mark
        ("မြန်မာ", ["မြန်", "န်မာ"]),
        ("iPhone手机3台 v2", ["iphone", "手机", "台", "v2", "phone"]),
        ("ＡＢＣ１２ ﾃﾞｰﾀ", ["abc12", "デー", "ータ", "abc", "12"]),
        ("か\u3099き", ["がき"]),  # composed
        ("The café's naïve 한국어 слова", ["café", "naïve", "한국어", "слова"]),
        ("", []),
        ("a I the", []),
    ],
)
def test_words(text, words):
    assert words_of([text]) == [[unicodedata.normalize("NFKC", word) for word in words]]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_other_scripts_are_split_as_by_bm25s(text):
    text = re.sub(f"[{_UNSPACED}\uff01-\uff5e]", "-", text)
    (words,) = bm25s.tokenize([text], return_ids=False, show_progress=False)
    assert words_of([text])[0][: len(words)] == words  # the parts of compound words follow


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("北京大ーｶﾞ゙ทีก่ ab1。-"), max_size=20))
def test_a_part_between_other_characters_has_words_of_the_whole(text):
    whole = words_of([f"京都 {text} 大学"])[0]
    (alone,) = words_of([text])
    assert sorted(whole) == sorted([*words_of(["京都 大学"])[0], *alone])
    assert [word for word in unspaced_words(text).split() if not word.isascii()] == [
        word for word in alone if not word.isascii()
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("refreshTokenForUser", "refresh token for user"),
        ("max_retry_count", "max retry count maxretrycount"),
        ("MAX_RETRY", "max retry maxretry"),
        ("XMLHttpRequest", "xml http request"),
        ("getÜberlauf", "get überlauf"),
        ("файлИмя", "файл имя"),
        ("foo__bar", "foo bar foobar"),
        ("__init__ of _read", "init init read read"),
        # a letter alone also belongs to the part behind it
        ("iPhone15", "phone 15 iphone"),
        ("OAuth2Token", "auth token oauth"),
        ("e1107", "1107"),
        ("E-1107", "e1107"),
        ("DEC-0054 and dec0054", "dec0054 dec 0054"),
        ("max-retry", "maxretry"),  # its parts are words of the text
        ("well-known Words, as NASA says", "wellknown"),
        ("a_b", "ab"),
        ("E\u20111107 and E\u20131108", "e1107 e1108"),
        ("v2.3.1, clause 4.2.", "2dot3dot1 4dot2"),
        ("x" * 60 + "-1", ""),
        ("", ""),
    ],
)
def test_parts_of_compound_words(text, parts):
    assert compound_parts(text) == parts.split()
    assert words_of([text])[0][-1:] == parts.split()[-1:] or not parts


def test_each_way_to_write_a_name_finds_the_others():
    for one, other in [
        ("e1107", "E-1107"),
        ("maxRetry", "max-retry"),
        ("max_retry", "maxRetry"),
        ("maxretry", "max_retry"),
        ("wifi", "Wi-Fi"),
        ("e-mail", "email"),
        ("v2.3.1", "2.3.1"),
        ("CVE202144228", "CVE-2021-44228"),
    ]:
        for first, second in ((one, other), (other, one)):
            assert set(words_of([first])[0]) & set(words_of([second])[0])
    assert with_parts("iPhone手机3台 in_a Case").endswith(" Case iPhone 手机 3 台 phone ina")


def test_numbered_words_are_the_same_words_and_those_that_splitting_at_spaces_does_not_find():
    found = {
        "iPhone手机3台 case": "iPhone 手机 3 台",
        "foo_手机 ＡＢ手机": "手机 AB 手机",
        "no such café 한국어": "",
        "": "",
    }
    assert {text: unspaced_words(text) for text in found} == found
    texts = ["東京都 tower", "", "京都 Tower the"]
    numbered = numbered_words(iter(texts))
    names = {number: word for word, number in numbered.vocab.items()}
    assert [[names[number] for number in row] for row in numbered.ids] == words_of(texts)


def test_bm25s_is_quiet_from_its_first_index_on():
    quiet = (
        "import logging, sys; logging.basicConfig(level=0, stream=sys.stdout);"
        " from runnel.text.words import bm25; bm25().BM25().index([['a']])"
    )
    assert "index" not in run_python("-c", quiet)
