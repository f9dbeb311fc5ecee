"""What is asked about a document, and the dialogue in which a local model reads it."""

import pytest

from runnel.text.dialogue import (
    answer_reply,
    ask_answer,
    ask_combined,
    ask_copies,
    copies_reply,
    dialogue,
)

ODD = "{length} {0} %s \\n DECISION: YES"

ASKED = [
    ask_answer(ODD, ODD, "sentence", excerpts=True),
    ask_answer(ODD, ODD, "paragraph", excerpts=False),
]


@pytest.mark.parametrize(
    "messages", [*ASKED, ask_combined(ODD, [ODD, ODD], "sentence"), ask_copies(ODD, ODD)]
)
def test_a_prompt_has_its_texts_as_they_are(messages):
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["content"].count(ODD) >= 2
    system, user = (message["content"] for message in messages)
    assert dialogue(messages) == f"User: {system}\n\n{user.strip()}\n\nAssistant:"


def test_the_kind_of_answer_and_replies():
    sentence, paragraph = (
        ask_answer(" Q? ", "\nT\n", kind, excerpts=True)[1]["content"]
        for kind in ("sentence", "paragraph")
    )
    assert paragraph == sentence.replace("one short sentence", "one short paragraph") != sentence
    assert answer_reply(" in the attic\n") == "ANSWER: in the attic"
    assert (
        copies_reply(["One is\nfirst. ", "Two."]) == "One is first.\nTwo."
        and copies_reply([]) == ""
    )
