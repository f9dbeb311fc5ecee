"""Records of question answering refuse what an evaluation could not use."""

import pytest

from runnel.errors import InputError
from runnel.evaluation.qa.records import QaDocument, QaQuestion, QaSet

DOCUMENT = QaDocument("d", "The key is under the mat.")
QUESTION = QaQuestion("q", "d", "Where is the key?", ("under the mat",))


def test_a_set_holds_documents_once():
    other = QaQuestion("r", "d", "What is under the mat?", ("the key", "a key"), answer_type="paragraph", category="creative")
    both = QaSet("house", {"d": DOCUMENT}, (QUESTION, other))
    assert [both.documents[one.document].text for one in both.questions] == [DOCUMENT.text] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QaDocument("d", " \n"), "document 'd' is empty; expected a text"),
        (lambda: QaDocument("d", "One. Two.", ((0, 5),)), "the sentences of document 'd' do not tile its 9 characters"),
        (lambda: QaDocument("d", "One. Two.", ((0, 4), (5, 9))), "the sentences of document 'd' do not tile its 9 characters"),
        (lambda: QaQuestion("q", "d", "Why?", ()), "question 'q' has no answer; expected one at least"),
        (lambda: QaQuestion("q", "d", "Why?", ("",)), "an answer of question 'q' is empty; expected a text"),
        (lambda: QaQuestion("q", "d", "", ("x",)), "question 'q' is empty; expected a text"),
        (lambda: QaQuestion("q", "d", "Why?", (3,)), r"an answer of question 'q' is 3; expected text \(str\)"),
        (
            lambda: QaQuestion("q", "d", "Why?", ("x",), answer_type="word"),
            "the answer type of question 'q' is 'word'; expected sentence or paragraph",
        ),
        (
            lambda: QaQuestion("q", "d", "Why?", ("x",), category="legal"),
            "the category of question 'q' is 'legal'; expected one of educational, creative, official, conversational",
        ),
        (
            lambda: QaDocument("d", "a\ud83d"),
            r"the text of document 'd' has half of a surrogate pair \('\\ud83d'\), which is not text",
        ),
        (lambda: QaQuestion("q", "d", "\udc00?", ("x",)), "question 'q' has half of a surrogate pair"),
        (lambda: QaSet("s", {}, ()), "s has no questions; expected one at least"),
        (lambda: QaSet("s", {"d": DOCUMENT}, (QUESTION, QUESTION)), "s has two questions with the id 'q'"),
        (lambda: QaSet("s", {}, (QUESTION,)), "question 'q' of s is about document 'd', which the set does not have"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(InputError, match=f"^{message}"):
        make()
