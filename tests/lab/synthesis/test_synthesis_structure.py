"""Questions that the structure of a document asks."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runnel.files import Decoded
from runnel.lab.synthesis.sources import Source
from runnel.lab.synthesis.structure import PART_QUESTIONS, PART_SENTENCES, StructureRows, ask, cut
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.tables import label_sentences
from runnel.text.documents.document import read_plain
from runnel.text.documents.markdown import read_markdown
from runnel.text.sentences import split_sentences

MANUAL = """# Widget manual

A widget is a small machine that turns hot water into steam.

## Cleaning

Rinse the tank with cold water every week. Never use soap on the filter.

## Safety rules

You must do the following before opening the lid:

- Switch the machine off at the wall.
- Wait ten minutes until the tank is cold.

If steam escapes from the lid, act as described in "Cleaning".

## Can I drink the water?

The water is not fit for drinking. It contains traces of oil.
"""
CONTRACT = """1. Definitions

"Confidential Information" shall mean all information that is marked as such. It has no value.

4.2 Term. This agreement begins on the first of May. It ends after two years.

4.3 FEES The licensee pays a fee every month. Late fees are due at once.

Either party may end the contract early pursuant to Section 4.2 of this agreement.

Secure Online Ordering When you order, we store your card in a vault.

Choosing the Best Card
Keep the costs in mind when you choose.
"""


def asked(text, kind="md"):
    document = (
        read_markdown(Decoded(text, "utf-8"))
        if kind == "md"
        else read_plain(Decoded(text, "utf-8"))
    )
    found = ask(document.text, lambda offset: document.places().kind_at(offset))
    shown = [
        (one.strategy, one.question, " ".join(document.text[slice(*one.answer)].split()))
        for one in found
    ]
    return document.text, found, shown


def test_what_a_manual_and_a_contract_ask():
    _, _, shown = asked(MANUAL)
    items = "- Switch the machine off at the wall. - Wait ten minutes until the tank is cold."
    clean = "Rinse the tank with cold water every week. Never use soap on the filter."
    last = 'If steam escapes from the lid, act as described in "Cleaning".'
    assert shown == [
        (
            "heading",
            "Widget manual",
            "A widget is a small machine that turns hot water into steam.",
        ),
        (
            "definition",
            "What is widget?",
            "A widget is a small machine that turns hot water into steam.",
        ),
        ("heading", "Cleaning", clean),
        ("heading", "Safety rules", f"{items} {last}"),
        ("list", "You must do before opening the lid", items),
        (
            "heading",
            "Can I drink the water?",
            "The water is not fit for drinking. It contains traces of oil.",
        ),
    ]
    _, _, shown = asked(CONTRACT, "txt")
    term = "This agreement begins on the first of May. It ends after two years."
    fees = (
        "The licensee pays a fee every month. Late fees are due at once. Either party may end the"
        " contract early pursuant to Section 4.2 of this agreement."
    )
    assert shown == [
        (
            "definition",
            "What does Confidential Information mean?",
            CONTRACT.split("\n")[2].partition(" It has")[0],
        ),
        ("heading", "Term", term),
        ("heading", "FEES", fees),
        ("heading", "Secure Online Ordering", "When you order, we store your card in a vault."),
        ("heading", "Choosing the Best Card", "Keep the costs in mind when you choose."),
    ], "a heading with a common word, Definitions, asks nothing"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\n ",
        "One paragraph. It has no heading, and asks nothing.",
        "Dr. Smith came home. He was tired of it all.",
        "The United States of America is large. The people live there.",
        "# Tables\n\n| a | b |\n|---|---|\n| one two three four five six | seven. |",
        "# Code\n\n```\nthis is one line of a program.\n```",
        "# Twice\n\nThis sentence has six words.\n\n# Twice\n\nThis one has some words too.",
        "# 17\n\nThis sentence has six words.",
    ],
)
def test_nothing_to_ask(text):
    assert asked(text)[2] == []


OTHERS = ["- An item: with a colon.", "What is it? It is a thing of value.", "see Section 4.2."]
LINES = st.sampled_from([*MANUAL.split("\n"), *CONTRACT.split("\n"), *OTHERS])


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, max_size=30).map("\n".join), st.sampled_from(["md", "txt"]))
@example(
    "A claim is a letter of one of these kinds:\n\n- It asks for money.\n- It asks for work.", "md"
)
def test_questions_are_cut_out_and_answers_stay(text, kind):
    text, found, _ = asked(text, kind)
    kept, place = cut(text, found)
    gone = [one.source for one in found if one.strategy != "definition"]
    assert len(kept) == len(text) - sum(end - start for start, end in gone), "no two cuts overlap"
    assert len({one.question.lower() for one in found}) == len(found)
    for one in found:
        answer = text[slice(*one.answer)]
        assert answer == answer.strip() != "" and kept[slice(*place(one.answer))] == answer
        assert label_sentences(kept, split_sentences(kept), [place(one.answer)]).any()
        assert " ".join(one.question.split()) == one.question and re.search(
            r"[^\W\d_]{3}", one.question
        )


def rows(text, limit=None, **more):
    made = StructureRows(Decontaminator([]), **more)
    return made, list(made.rows([Source("a.txt", text)], limit))


def chapters(count):
    return "".join(
        f"Chapter about wheel{n}\n\nKeeper Berg repaired wheel {n} in the year {n + 900}.\n\n"
        for n in range(count)
    )


def test_a_long_document_is_read_in_parts():
    text = chapters(402)  # 804 sentences: three parts, none of which ends with a heading
    made, found = rows(text)
    parts = {row["source_start"]: row["document"] for row in found}
    assert made.read == len(parts) == 3 and all(
        len(split_sentences(part)) <= PART_SENTENCES for part in parts.values()
    )
    assert len(found) == 3 * PART_QUESTIONS == made.kept.total()
    assert made.rejected == {f"questions beyond {PART_QUESTIONS} about a part": 402 - len(found)}
    for row in found:
        (answer,) = row["evidence"]
        assert row["document"][slice(*answer)] == text[slice(*row["source_evidence"])]
        assert (
            text[slice(*row["source_question"])] == row["question"]
            and row["question"] + "\n" not in row["document"]
        )
    assert len({row["id"] for row in found}) == len(found)


def test_what_is_chosen_and_left_out(tmp_path):
    text = chapters(100)
    assert rows(text, seed=1)[1] == rows(text, seed=1)[1] != rows(text, seed=2)[1]
    assert rows(text, limit=7)[1] == rows(text)[1][:7]
    (tmp_path / "test.jsonl").write_text(
        '{"question": "q", "document": "Keeper Berg repaired wheel 3 in the year 903."}\n'
    )
    made = StructureRows(Decontaminator([tmp_path / "test.jsonl"]))
    assert not list(made.rows([Source("a", chapters(5))]))
    assert list(made.rejected) == ["subsequences that overlap with a test set"]
    made, found = rows(chapters(2) + "License\n\nThe Project Gutenberg books are free of cost.\n")
    assert len(found) == 2 and made.rejected == {"questions about boilerplate of a publisher": 1}
    assert rows("")[0].read == 0 and rows("Only one sentence is here.")[0].rejected == {
        "parts whose structure asks nothing": 1
    }
