"""A user's own questions: which documents answer, and what went wrong. The index is a stand-in."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.files import write_rows
from helpers.places import answering, place

from runnel.errors import InputError
from runnel.lab.evaluation.metrics import mean
from runnel.lab.evaluation.own import DEPTH, ask, locate, read_questions, values_of
from runnel.models.scored import Scored
from runnel.records import Hit
from runnel.text.sentences import split_sentences

PAGES = json.dumps(
    {
        "blocks": [[0, 14, "paragraph", 1, 0, 0], [14, 60, "paragraph", 2, 0, 0]],
        "paths": [[]],
        "leads": [[]],
        "unread": [],
    }
)
DOCUMENTS = {
    "/lib/notes/cats.md": "Red cats sleep. Blue cats run. Cats eat.\nThe  cat\nsat down.",
    "/lib/old/cats.md": "An old cat.",
    "/lib/dogs.pdf": "Red dogs bark. Dogs sleep on the second page.",
    "/lib/rows.csv#1": "one bird",
    "/lib/rows.csv#2": "two birds fly",
    "gc": "Garbage is collected.",
}


class FakeIndex:
    """Ranks documents by common words, or, as meaning does here, always in the
    order of their ids.
    """

    def __init__(self, documents=DOCUMENTS):
        self.texts = documents
        self.embedder = SimpleNamespace(
            model=SimpleNamespace(backbone=SimpleNamespace(passage_tokens=None), heads={})
        )
        settings = SimpleNamespace(remember=False)
        self.store = SimpleNamespace(
            uri="library", settings=settings, content_hashes=self.hashes, documents=self.documents
        )

    def hashes(self):
        return {
            name: SimpleNamespace(source=name.split("#")[0] if "/" in name else "")
            for name in self.texts
        }

    def documents(self, ids):
        return {
            name: SimpleNamespace(text=self.texts[name], blocks=PAGES if "pdf" in name else "")
            for name in ids
        }

    def search(self, query, top_k=10, *, dense_weight=None, rerank=None, read=None, sentences=3):
        words = set(query.lower().split())
        common = {
            name: len(words & set(text.lower().replace(".", "").split()))
            for name, text in self.texts.items()
        }
        weight = 0.0 if dense_weight is None else dense_weight
        scores = {
            name: common[name] + weight / (61 + place)
            for place, name in enumerate(sorted(self.texts))
        }
        # words alone find no others
        scores = {name: score for name, score in scores.items() if score or dense_weight != 0}
        ranked = sorted(scores, key=lambda name: (-scores[name], name))[:top_k]
        return [
            self.hit(name, scores[name], rank, words, sentences)
            for rank, name in enumerate(ranked, start=1)
        ]

    def hit(self, name, score, rank, words, count):
        text = self.texts[name]
        spans = split_sentences(self.texts[name])
        found = np.array(
            [len(words & set(text[a:b].lower().replace(".", "").split())) for a, b in spans],
            np.float32,
        )
        best = sorted(list(Scored(text, spans, found).ranked())[:count], key=lambda s: s.index)
        return Hit(
            name,
            score,
            rank,
            text,
            tuple(answering(place(name, text, s.start, s.end), s.score, s.index) for s in best),
        )


@pytest.fixture
def asked(tmp_path):
    def asked(*rows, index=None, top_k=2):
        """Ask rows of (question, file) or of (question, file, more)."""
        index = index or FakeIndex()
        made = [
            {"question": question, "file": file, **dict(*more)} for question, file, *more in rows
        ]
        questions = read_questions(write_rows(tmp_path / "questions.jsonl", made))
        targets = locate(questions, index)
        answers = [ask(question, targets[question.id], index, top_k, {}) for question in questions]
        values = [
            values_of(question, answer) for question, answer in zip(questions, answers, strict=True)
        ]
        return [
            SimpleNamespace(**answer, values=one)
            for answer, one in zip(answers, values, strict=True)
        ]

    return asked


def kind(answer):
    return answer.problem and answer.problem["kind"]


@pytest.mark.parametrize(
    "file", ["/lib/notes/cats.md", "notes/cats.md", "./notes/cats.md", "notes\\cats.md"]
)
def test_a_file_is_found_by_the_end_of_its_path(asked, file):
    (answer,) = asked(("blue cats", file))
    assert (answer.rank, answer.problem) == (1, None)


def test_rows_ids_several_files_and_pages(asked):
    several = ["notes/cats.md", "nowhere.md", "dogs.pdf"]
    birds = ("two birds fly", "rows.csv"), ("two birds fly", "rows.csv#2")
    answers = asked(*birds, ("garbage collected", "gc"), ("red dogs", several), top_k=5)
    assert [answer.rank for answer in answers] == [1, 1, 1, 1] and not any(map(kind, answers))
    one, two, three = asked(
        ("red dogs bark", "dogs.pdf", {"page": 1}),
        ("red dogs", "dogs.pdf", {"page": "2", "text": "second page"}),
        ("red dogs", "dogs.pdf", {"page": 3}),
    )
    assert (one.place, two.place) == (1, 1)
    assert (
        three.problem["text"] == "page 3 is not in dogs.pdf as it was indexed"
        and kind(three) == "not in the file"
    )


def test_the_expected_place_must_be_shown(asked):
    answers = asked(
        *(("cat red", "a", {"text": text}) for text in ("four CAT\n red", "one cat", "five ox")),
        index=FakeIndex(
            {"a": "One cat. Two cat red. Three cat red. Four cat red. Five ox.", "b": "ox"}
        ),
    )
    assert [(a.rank, a.place, a.sentence) for a in answers] == [
        (1, 1, 3),
        (1, None, 4),
        (1, None, 5),
    ]
    assert [kind(a) for a in answers] == [None, "wrong place", "wrong place"]
    assert [(a.values["MRR"], a.values["place MRR"]) for a in answers] == [(1, 1), (1, 0), (1, 0)]
    assert (
        answers[1]
        .problem["text"]
        .endswith('the best sentence is "Two cat red.", the expected one is number 4')
    )


def test_what_went_wrong(asked):
    low, missing, absent, far, right = answers = asked(
        ("red dogs sleep on the second page", "old/cats.md"),
        ("who", "dgos.pdf"),
        ("cats", "notes/cats.md", {"text": "blue cats walk"}),
        ("cats", "notes/cats.md", {"text": "quite another thing"}),
        ("blue cats", "notes/cats.md", {"text": "blue cats run"}),
    )
    assert kind(low) == "ranked too low" and low.rank == 3
    assert (
        low.problem["text"]
        == f"found at rank 3 (not among the first {DEPTH} by words, 3 by meaning)"
    )
    assert [name.rsplit("/")[-1] for name in low.found] == ["dogs.pdf", "cats.md"]
    assert kind(missing) == "not in the index" and missing.problem["text"].endswith(
        "the nearest name is dogs.pdf"
    )
    assert absent.problem["text"].endswith(
        'not in notes/cats.md as it was indexed; the nearest is "Blue cats run."'
    )
    assert (
        far.problem["text"] == "the expected text is not in notes/cats.md as it was indexed"
        and right.problem is None
    )
    found = mean({number: answer.values for number, answer in enumerate(answers)})
    assert found["hits@1"] == pytest.approx(1 / 5) and found["hits@3"] == pytest.approx(2 / 5)
    assert found["MRR"] == pytest.approx((1 + 1 / 3) / 5) and "place MRR" not in low.values
    # of the questions that expect a place
    assert found["place hits@1"] == found["place MRR"] == pytest.approx(1 / 3)


def test_questions_of_a_table(tmp_path):
    (tmp_path / "q.csv").write_text(
        'question,file,page,text\n"who, me?",a.pdf,3,\nwhat,b.md,,words\n'
    )
    one, two = read_questions(tmp_path / "q.csv")
    assert (one.query, one.files, one.page, one.text, one.id) == (
        "who, me?",
        ("a.pdf",),
        3,
        "",
        "1",
    )
    assert (two.page, two.text, two.expected) == (None, "words", 'b.md, "words"')


def test_names_that_mean_several_files_or_none(asked):
    with pytest.raises(
        InputError,
        match=r"'cats.md' could be /lib/notes/cats.md or /lib/old/cats.md; give more of the path",
    ):
        asked(("a", "cats.md"))
    with pytest.raises(
        InputError,
        match=r"library: x\.md ",
    ):
        asked(("a", "x.md"), ("b", "y.md"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"file": "a"}', "line 1: 'question'"),
        ('{"question": "a", "file": []}', 'line 1: .*"file"'),
        ('{"question": "a", "file": "b", "page": 0.5}', "line 1: 'page' is 0.5"),
        ('{"id": 1, "question": "a", "file": "b"}\n' * 2, "two have the id '1'"),
    ],
)
def test_bad_questions(tmp_path, line, named):
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(InputError, match=named):
        read_questions(tmp_path / "q.jsonl")
