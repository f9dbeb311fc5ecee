"""Strategies with a model that follows its prompts, and what is rejected when it does not."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.children import TESTS, run_python
from helpers.synthesis import NUMBERED, follow, subsequence

from runnel import Embedder
from runnel.generation.endpoint import Reply
from runnel.lab.replies import Inquiry, stored_replies
from runnel.lab.synthesis.examples import Settings, Synthesis
from runnel.lab.synthesis.sources import Cutter, Sources
from runnel.lab.synthesis.strategies import (
    AROUND,
    BESIDE,
    LINKED,
    NEAR,
    PROMPTS,
    VERSION,
    WIDER,
    Rejected,
    fill,
    read_reply,
    write_chunk,
    write_link,
    write_pair,
)
from runnel.lab.training.decontaminate import Decontaminator

SIZE = 20


class Model:
    def __init__(self, rule=follow):
        self.rule = rule
        self.prompts = []

    def __call__(self, messages):
        self.prompts.append(messages[-1]["content"])
        return Reply(self.rule(messages), "stop")


def encode(texts):
    """The nearest text to the first is the last one."""
    return np.array([[1.0, 0.0], *([n / len(texts), 1.0] for n in range(1, len(texts)))])


def write(strategy, text, ask, seed=0):
    rng = np.random.default_rng(seed)

    def asked(name, **texts):
        return ask(fill(PROMPTS, name, **texts))

    if strategy == "pair":
        return write_pair(text, SIZE, rng, asked, encode)
    return {"chunk": write_chunk, "link": write_link}[strategy](text, SIZE, rng, asked)


@pytest.mark.parametrize("seed", range(20))
def test_a_question_about_neighboring_sentences(seed):
    text = subsequence(41)
    model = Model()
    draft = write("chunk", text, model, seed)
    (place,) = draft.places
    shown = NUMBERED.findall(model.prompts[0])
    assert len(place) == len(shown) == SIZE and 0 <= place.start < place.stop <= 41
    assert [(int(n), line) for n, line in shown] == [(n, text.unit(n)) for n in place]
    assert (
        draft.units == (place[0], place[-1]) and draft.connection is None and draft.distance is None
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_pair_is_of_places_that_do_not_touch(seed):
    text = subsequence(205)
    model = Model()
    draft = write("pair", text, model, seed)
    first, second = draft.places
    assert first.start % SIZE == second.start % SIZE == 0 and second.stop <= 205
    assert draft.distance == second.start - first.stop + 1 >= 6
    assert {n // SIZE for n in draft.units} == {first.start // SIZE, second.start // SIZE}
    assert 180 in (first.start, second.start) or second.start == 160, (
        "the nearest vector is that of the last place"
    )
    assert len(model.prompts) == 1
    assert write("pair", subsequence(60), Model(), seed).places == (
        range(20),
        range(40, 60),
    ), "the only two"


@pytest.mark.parametrize("count", [60, 101, 500])
@pytest.mark.parametrize("seed", range(10))
def test_a_link_is_the_furthest_connection_with_evidence_in_both_places(count, seed):
    text = subsequence(count)
    model = Model()
    draft = write("link", text, model, seed)
    connections, question, labels = model.prompts
    place, around = (
        NUMBERED.findall(part) for part in connections.split("The document around it:")
    )
    numbers, inside = ([int(number) for number, _ in shown] for shown in (around, place))
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) and inside == list(
        range(inside[0], inside[0] + SIZE)
    )
    before = inside[0] - numbers[0]
    after = numbers[-1] - inside[-1]
    rest = AROUND - SIZE - NEAR  # on the other side
    sides = {
        (min(NEAR, inside[0]), min(rest, count - 1 - inside[-1])),
        (min(rest, inside[0]), min(NEAR, count - 1 - inside[-1])),
    }
    assert (before, after) in sides and before + after == max(map(sum, sides))
    assert (
        draft.connection in question and draft.question in labels and not NUMBERED.findall(question)
    )
    first, second = draft.places
    wider = range(max(inside[0] - WIDER, 0), min(inside[-1] + WIDER + 1, count))
    assert wider in draft.places and draft.distance >= LINKED
    linked = second if wider == first else first
    assert BESIDE + 1 <= len(linked) <= 2 * BESIDE + 1
    assert first.stop <= second.start and draft.units == (first[0], second[-1])
    shown = [int(number) for number, _ in NUMBERED.findall(labels)]
    assert shown == [*first, *second], "in the order of the document"


def changed(**values):
    def rule(messages):
        found = json.loads(follow(messages))
        return json.dumps(found | {name: value for name, value in values.items() if name in found})

    return rule


def with_nearer(distance, *, only=False):
    """Return a rule that also names the sentences at this distance from the place, or only the
    first of them.
    """

    def rule(messages):
        found = json.loads(follow(messages))
        before, _, after = messages[-1]["content"].partition("The document around it:")
        if "connections" in found:
            place, shown = ([int(n) for n, _ in NUMBERED.findall(part)] for part in (before, after))
            near = [n for n in (place[0] - distance, place[-1] + distance) if n in shown]
            nearer = [{"sentence": n, "connection": "near"} for n in near]
            found["connections"] = nearer[:1] if only else nearer + found["connections"]
        return json.dumps(found)

    return rule


def test_nearer_connections_are_left_aside():
    assert "near" not in write("link", subsequence(200), Model(with_nearer(12))).connection


def one_place(messages):
    found = json.loads(follow(messages))
    return json.dumps(
        found | ({"sentences": found["sentences"][:1]} if "sentences" in found else {})
    )


def all_shown(messages):
    """Name every sentence as evidence, as small models do."""
    values = json.loads(follow(messages))
    if "sentences" in values:
        values["sentences"] = [int(n) for n, _ in NUMBERED.findall(messages[-1]["content"])]
    return json.dumps(values)


FORM, NOT_JSON = "replies of another form than requested", "replies that are not JSON"
NOT_SHOWN = "replies with numbers of sentences that were not shown"
BOILERPLATE = "places or questions about boilerplate of a publisher"
ONE_PLACE = "questions with evidence in one place only"
NO_QUESTION = "replies without a question"
SEVERAL = "replies with several questions"
ITSELF = "questions about a text, not its subject"
EVERYTHING = "questions with everything that was shown as evidence"
FAR = [{"sentence": 999, "connection": "c"}]


@pytest.mark.parametrize(
    ("strategy", "rule", "reason"),
    [
        ("chunk", lambda messages: "Sure! Here is one.", NOT_JSON),
        ("chunk", lambda messages: "[" * 100_000, NOT_JSON),
        ("chunk", lambda messages: "[1]", FORM),
        ("chunk", lambda messages: "I'm sorry, I cannot help with {this}.", NOT_JSON),
        ("chunk", lambda messages: 'The question is: "Who held on?"', NOT_JSON),
        ("chunk", lambda messages: "", NOT_JSON),
        ("chunk", lambda messages: "{}", FORM),
        ("chunk", changed(question=" "), FORM),
        ("chunk", changed(question="..."), NO_QUESTION),
        ("chunk", changed(question="I'm sorry, but I can't write that."), NO_QUESTION),
        ("chunk", changed(question="Sorry, which one?"), NO_QUESTION),
        ("chunk", changed(question="I can’t write a question about it."), NO_QUESTION),
        ("chunk", changed(question="What does this text say?"), ITSELF),
        ("chunk", changed(question="As an AI, I have no question."), NO_QUESTION),
        ("chunk", changed(question="Who fell?<|im_end|>"), NO_QUESTION),
        ("chunk", changed(question="What did Ali say? Had he given presents?"), SEVERAL),
        ("chunk", changed(question="1. Who fell?\n2. Who rose?"), SEVERAL),
        ("chunk", changed(question="Who fell? - and why?"), SEVERAL),
        ("chunk", changed(question="谁修了轮子？什么时候？"), SEVERAL),
        ("chunk", changed(question="من أصلح العجلة؟ ومتى؟"), SEVERAL),
        ("chunk", changed(question="¿Quién cayó? ¿Y por qué?"), SEVERAL),
        ("pair", changed(question="What is the name of who wrote this sentence?"), ITSELF),
        ("link", changed(question="Who has not read the passage?"), ITSELF),
        ("chunk", changed(question="Which city in the given passage is free?"), ITSELF),
        ("link", changed(answer="In the Texts Of The Publisher (copyright)"), BOILERPLATE),
        ("chunk", all_shown, EVERYTHING),
        ("pair", all_shown, EVERYTHING),
        ("link", all_shown, EVERYTHING),
        ("chunk", changed(sentences=[True]), FORM),
        ("chunk", changed(sentences=[]), "questions without evidence"),
        ("chunk", changed(sentences=[999]), NOT_SHOWN),
        ("chunk", changed(question="Who holds the Copyright?"), BOILERPLATE),
        ("pair", one_place, ONE_PLACE),
        ("link", one_place, ONE_PLACE),
        (
            "link",
            with_nearer(9, only=True),
            "places whose connections are all nearer than 10 units",
        ),
        ("link", changed(connections=[]), "places without connections"),
        ("link", changed(connections=FAR), NOT_SHOWN),
        ("link", changed(connections=[FAR[0] | {"sentence": "7"}]), FORM),
        ("link", changed(answer="Ask Project Gutenberg."), BOILERPLATE),
    ],
)
def test_what_is_rejected(strategy, rule, reason):
    with pytest.raises(Rejected, match=f"^{reason}$"):
        write(strategy, subsequence(80), Model(rule))


TOO_FEW = [("chunk", 0), ("chunk", 19), ("pair", 1), ("pair", 59), ("link", 19), ("link", 28)]


@pytest.mark.parametrize(
    ("strategy", "text", "reason"),
    [
        (strategy, subsequence(count), "subsequences with too few units")
        for strategy, count in TOO_FEW
    ]
    + [
        (strategy, subsequence(80, name="Gutenberg"), BOILERPLATE) for strategy in ("chunk", "link")
    ],
)
def test_what_is_rejected_before_anything_is_asked(strategy, text, reason):
    model = Model()
    with pytest.raises(Rejected, match=f"^{reason}$"):
        write(strategy, text, model)
    assert not model.prompts


@pytest.mark.parametrize(
    "text",
    [
        '{"a": " b "}',
        ' {\n  "a": "b"\n} ',
        '```json\n{"a": "b"}\n```',
        '```\n{"a": "b"}```',
        '```JSON {"a": "b"} ```',
        'Sure! Here is {one}:\n\n```json\n{"a": "b"}\n```\nI hope this helps.',
        '{"a": "b"}<|im_end|>\n<|im_start|>user\nMore?',
        '[{"a": "b"}, {"a": "c"}]',
        '{"a": "b"}\n{"a": "c"}',
        '<think>{"a": "no"}</think>\n{"a": "b", "more": 1}',
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_first_object_of_a_reply_is_read(text, finish):
    assert read_reply(Reply(text, finish), a="text") == {"a": "b"}


def test_strings_may_have_line_breaks_and_prompts_braces():
    assert read_reply(Reply('{"a": "b\nc"}', "stop"), a="text") == {"a": "b\nc"}
    assert read_reply(Reply(' {"a": 3, "more": 1} ', "stop"), a="number") == {"a": 3}
    for text in ('```json\n{"a": "b', '{"a": "b" and so on, and so', ""):
        with pytest.raises(Rejected, match=r"^replies cut at their limit of tokens$"):
            read_reply(Reply(text, "length"), a="text")
    _, user = fill(PROMPTS, "chunk", sentences="[3] {sentences} {0} {{x}}")
    assert (
        "[3] {sentences} {0} {{x}}" in user["content"] and '{"question": "..."' in user["content"]
    )


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ("1. Who fell?", "Who fell?"),
        ("Question: Who fell?", "Who fell?"),
        ("Q1) Who fell?", "Who fell?"),
        (*['Who asked "Why?" and left?'] * 2,),
        (*["Who fell (and why?)?!"] * 2,),
        (*["谁修了轮子？"] * 2,),
        (*["3.5 mm jack: where is it?"] * 2,),
        (*["name of the keeper"] * 2,),
        (*["I can't log in: what do I do?"] * 2,),
        (*["How is the text split?"] * 2,),
        (*["What does https://example.org/?q=1 return, and `a?b:c`?"] * 2,),
        (*["Which sentence did Berg get, and what was the death sentence for?"] * 2,),
    ],
)
def test_questions_that_are_kept(written, question):
    assert write("chunk", subsequence(80), Model(changed(question=written))).question == question


# of tokens read for a million examples, in docs/papers.md, table 4
BILLIONS = {"chunk": 0.79, "pair": 1.37, "link": 6.07}
DOCS = TESTS.parent / "docs"


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "reference.txt"
    run_python(TESTS.parent / "examples" / "python_reference.py", path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BILLIONS)
def test_tokens_of_a_million_examples(strategy, reference, tmp_path):
    embedder = Embedder.load("pocket")

    def complete(messages, **more):
        tokens = sum(len(embedder.model.tokenizer.encode(one["content"])) for one in messages)
        return Reply(follow(messages), "stop", tokens, 1)

    endpoint = SimpleNamespace(model="m", url="u", complete=complete)
    with stored_replies(tmp_path, endpoint) as replies:
        # which place is the nearest matters little
        any_partner = lambda texts: np.ones((len(texts), 1))  # noqa: E731
        synthesis = Synthesis(
            Inquiry(replies, 1), Settings(strategy), any_partner, Decontaminator([])
        )
        rows = list(
            synthesis.rows(Cutter(embedder.model.tokenizer).cuts(Sources([str(reference)], 0)))
        )
        read = synthesis.cost(replies.used[VERSION])["input_tokens"] / 1e9
    assert len(rows) >= 20 and read == pytest.approx(BILLIONS[strategy], rel=0.1), (
        "the reference differs with Python's version"
    )
    assert all(
        f"{BILLIONS[strategy]:.2f}" in (DOCS / page).read_text()
        for page in ("data.md", "papers.md")
    )
