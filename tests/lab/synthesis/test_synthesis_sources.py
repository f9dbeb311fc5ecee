"""Documents of files, folders and rows, their subsequences, and their languages."""

import sys
from collections import Counter

import numpy as np
import pytest
from helpers.files import write_files, write_rows
from helpers.synthesis import story
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runnel.errors import InputError, MissingDependency
from runnel.lab.synthesis import sources
from runnel.lab.synthesis.sources import Cutter, Source, Sources, check_language, refusal
from runnel.lab.training.decontaminate import Decontaminator
from runnel.text.joined import as_read
from runnel.text.tokenizer import Encoded


class Words:
    def encode(self, text):
        starts = [
            n for n, c in enumerate(text) if not c.isspace() and (n == 0 or text[n - 1].isspace())
        ]
        starts = np.array(starts, dtype=np.int64)
        return Encoded(np.zeros(len(starts), np.int32), starts, starts + 1)


PIECES = st.sampled_from(
    [
        "One two three.",
        "Four, five!\n\n",
        "Six",
        "# Seven\n",
        "  ",
        "Eight nine; ten eleven twelve.",
    ]
)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@example(" ".join(["One two three."] * 35), [1], 0, "clauses")
@given(
    st.lists(PIECES).map(" ".join),
    LENGTHS,
    st.integers(0, 9),
    st.sampled_from(["sentence", "clauses"]),
)
def test_subsequences_are_exact_and_do_not_overlap(text, lengths, seed, unit):
    cutter = Cutter(Words(), tuple(lengths), unit, seed)
    found = list(cutter.cuts([Source("a", text)]))
    at = 0

    def whole(source, part):
        if unit == "clauses":  # joined without the whitespace between sentences
            source, part = ("".join(one.split()) for one in (source, part))
        return source.startswith(part)

    for one in found:
        assert one.source == "a" and one.start >= at and whole(text[one.start :], one.text)
        at = one.start + len(one.text)
        assert one.text == one.text.strip() and one.length in lengths
        units = [one.unit(n) for n in range(len(one.spans))]
        assert all(unit and unit == unit.strip() for unit in units)
        assert "".join("".join(units).split()) == "".join(one.text.split()), "units cover the text"
        words = len(one.text.split())
        # Clauses are joined without white space: "three.One" is one token, of the part before.
        assert one.tokens == words or (unit == "clauses" and one.tokens == words - 1)
        assert one.tokens <= one.length or len(units) == 1
    assert cutter.short == (len(as_read(text, unit)[0].split()) < min(lengths))
    assert found or cutter.short


def test_lengths_have_equal_numbers():
    documents = [Source(f"{n}", story(100 + 20 * n, name=f"K{n}")) for n in range(20)]
    cutter = Cutter(Words(), (50, 125, 250))
    found = Counter(one.length for one in cutter.cuts(documents))
    assert max(found.values()) - min(found.values()) <= 5, (
        "but for what the last documents have room for"
    )
    assert cutter.made == found and sum(found.values()) > 200
    for lengths in ((), (0,), (500, -1)):
        with pytest.raises(InputError, match="least length in tokens is"):
            Cutter(Words(), lengths)


def test_the_seed_chooses(tmp_path):
    for n in range(9):
        (tmp_path / f"{n}.txt").write_text(story(50, name=f"K{n}"))

    def chosen(seed):
        sources = Sources([str(tmp_path)], seed)
        return [(one.source, one.start) for one in Cutter(Words(), (75,), seed=seed).cuts(sources)]

    assert chosen(1) == chosen(1) != chosen(2)
    assert {name for name, _ in chosen(1)} == {name for name, _ in chosen(2)}
    assert [name for name, _ in chosen(1)] != sorted(name for name, _ in chosen(1))


def test_files_folders_rows_and_evidence(tmp_path, caplog):
    evidence = [
        {"question": "q", "document": "One.", "evidence": []},
        {"id": "b", "question": "q", "document": "Two."},
    ]
    write_files(
        tmp_path,
        {
            "folder/page.md": "# A page\n\nOf text.\n",
            "folder/copy.txt": "# A page\n\nOf text.\n",
            "folder/empty.txt": "",
            "folder/bad.pdf": "%PDF-1.4 damaged\n",
            "rows.jsonl": [{"id": "7", "text": "A row."}, {"text": "Another."}],
            "evidence.jsonl": [*evidence, evidence[0]],
        },
    )
    names = ("folder", "rows.jsonl", "evidence.jsonl")
    sources = Sources([str(tmp_path / name) for name in names], 0)
    found = {one.name.removeprefix(f"{tmp_path}/"): one.text.strip() for one in sources}
    assert {text for text in found.values() if text} == {
        "# A page\n\nOf text.",
        "A row.",
        "Another.",
        "One.",
        "Two.",
    }
    assert found["rows.jsonl: 7"] == "A row." and found["evidence.jsonl: b"] == "Two."
    assert (sources.documents, sources.repeated) == (6, 2)
    assert [one.file for one in sources.skipped] == [str(tmp_path / "folder" / "bad.pdf")]
    assert any(line.startswith("error: ") and "bad.pdf" in line for line in caplog.messages)
    write_rows(tmp_path / "evidence.jsonl", [evidence[0], {"question": "q"}])
    with pytest.raises(
        InputError, match=r"evidence\.jsonl, line 2: expected a text as \"document\""
    ):
        list(Sources([str(tmp_path / "evidence.jsonl")], 0))


TEXTS = {
    "en": (
        "The keeper of the old mill sold flour to the bakers of the town until the river changed"
        " its course."
    ),
    "de": (
        "Der Müller der alten Mühle verkaufte den Bäckern der Stadt sein Mehl, bis der Fluss sein"
        " Bett verließ."
    ),
    "fr": (
        "Le meunier du vieux moulin vendait sa farine aux boulangers de la ville, jusqu'au jour où"
        " la rivière changea de lit."
    ),
}


def test_a_text_is_in_its_language_and_one_without_words_in_none():
    for of, text in [*TEXTS.items(), ("", ""), ("", " \n"), ("", "12 34 56"), ("", "|--|--|")]:
        assert [code for code in TEXTS if refusal(text, Decontaminator([]), code) is None] == [
            of
        ] * bool(of), text


def test_errors(monkeypatch):
    check_language("en")
    with pytest.raises(InputError, match=r"'english'.* en, "):
        check_language("english")
    sources._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MissingDependency, match="py3langid"):
        check_language("en")
