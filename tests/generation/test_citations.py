"""What is left of an answer's citations, and which of its sentences have none."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnel.generation.citations import NO_SOURCE, CheckedText

MARK = NO_SOURCE.strip()


def checked(text: str, size: int, count: int = 3) -> CheckedText:
    """Return a text that arrived in parts of `size` characters."""
    shown: list[str] = []
    one = CheckedText(count, shown.append)
    for at in range(0, len(text), size):
        one.feed(text[at : at + size])
    one.end()
    assert "".join(shown) == one.text
    return one


PARTS = [
    "Two",
    " ",
    "[1]",
    "[2",
    "]",
    "[9]",
    ", 3",
    "[",
    "\n",
    "NO",
    "a [1, 9] b",
    ". ",
    "e.g. ",
    '"',
    "```",
    "# ",
    "。",
    "*",
    ":",
]


@given(
    st.lists(st.sampled_from(PARTS), max_size=16),
    st.integers(1, 5),
    st.sampled_from(["", "<think>", "\n<think>It is [1] or [9], NO ANSWER.</think>\n\n", "<think></think>"]),
)
@example(["[" + "1" * 200, ". ", "[1]"], 3, "")
def test_the_parts_in_which_an_answer_arrives_do_not_matter(parts: list[str], size: int, reasoning: str) -> None:
    text = reasoning + "".join(parts)
    one, whole = checked(text, size), checked(text, len(text) or 1)
    assert (one.text, one.cited, one.removed, one.unsourced) == (whole.text, whole.cited, whole.removed, whole.unsourced)
    assert "[9]" not in one.text and one.text.count(MARK) == len(one.unsourced)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("It frees the disk [7].", "It frees the disk. (no source)"),
        ("Anna [1]. It frees the disk. She sold flour [2].", "Anna [1]. It frees the disk. (no source) She sold flour [2]."),
        ("It is Anna. She sold flour. [1]", "It is Anna. (no source) She sold flour. [1]"),  # only the sentence before it
        ("It is Anna. [1] She sold flour. [9]", "It is Anna. [1] She sold flour. (no source)"),
        ("[1] It is Anna. [2] She sold flour.", "[1] It is Anna. [2] She sold flour."),
        ("Dr. Berg, e.g. of Lund, sold 3.5 kg [1]. So", "Dr. Berg, e.g. of Lund, sold 3.5 kg [1]. So (no source)"),
        (
            "# The keeper. Who?\n\nThey were:\n- Anna [1]\n- Ole\n",
            "# The keeper. Who?\n\nThey were:\n- Anna [1]\n- Ole (no source)",
        ),
        ("Run [1]:\n```sh\nrm x. Then y\n```\n---\nDone.", "Run [1]:\n```sh\nrm x. Then y\n```\n---\nDone. (no source)"),
        ("It says “Two. Three.” [1] and **so. ** Ole", "It says “Two. Three.” [1] and **so. ** Ole (no source)"),
        ("水是蓝的。火是红的[1]。", "水是蓝的。 (no source)火是红的[1]。"),
    ],
)
def test_a_sentence_without_a_source_is_marked(reply: str, text: str) -> None:
    assert checked(reply, 1).text == text


def test_long_numbers_are_no_citations() -> None:
    text = f"Two [{'1' * 5000}] [1234567] [1, 7654321] [999999]."
    one = checked(text, 7)
    assert (one.text, one.cited, one.removed) == (text.replace(" [999999]", "") + NO_SOURCE, [], [999999])


@pytest.mark.parametrize("part", [" ", "\n", "[", "1, ", " [9]", "[1]", "Word. ", '"word. ', "<think>", "NO ANSWER", "[1,"])
@pytest.mark.parametrize("begin", ["", "a", "[1", "<think>"])
def test_time_is_linear_in_the_length_of_an_answer(begin: str, part: str) -> None:
    start = time.process_time()
    checked(begin + part * (80_000 // len(part)) + "b", 3)
    assert time.process_time() - start < 10  # half a second, where a quadratic one takes minutes
