"""`runnel lab synthesize` with an endpoint that answers by rule, and without one."""

import json

import pytest
from helpers.files import read_rows, write_rows
from helpers.synthesis import follow, story

from runnel.lab.synthesis.examples import ask_structure
from runnel.lab.synthesis.strategies import VERSION
from runnel.lab.training.data import Dropped
from runnel.lab.training.evidence import read_evidence

LENGTHS = ("--lengths", "1000,1200")
rule = follow  # of `stub`


@pytest.fixture
def books(tmp_path):
    for n in range(4):
        write_rows(tmp_path / "books" / f"{n}.txt", [story(400, name=f"Keeper{n}")])
    return tmp_path / "books"


def own_prompts(path, **changed):
    """Write prompts that keep the words by which the stub knows what is asked."""
    texts = {
        "system": "Mine.",
        "connections": """Mine {"a": 1}. The place:\n{place}\nThe document around it:\n{around}""",
        "question": "Mine. Connection: {connection}",
        "labels": "Mine. Question: {question}\n{sentences}",
    }
    texts |= changed
    rows = [f"{name} = {json.dumps(text)}" for name, text in texts.items() if text is not None]
    return write_rows(path, ["[synthesis]", *rows])


def test_prompts_of_the_users_own(run, stub, books, tmp_path):
    own = own_prompts(tmp_path / "own.toml")
    command = ("lab", "synthesize", books, "--limit", 2, *LENGTHS, "--to", "out", "--prompts", own)
    done = run(*command)
    assert done.code == 0 and len(stub.asked) == 6, done.err
    for body in stub.asked:
        assert [m["content"][:4] for m in body["messages"]] == ["Mine", "Mine"]
    assert any('Mine {"a": 1}. The' in body["messages"][1]["content"] for body in stub.asked)
    (version,) = {row["prompts"] for row in read_rows(tmp_path / "out" / "link.jsonl")}
    assert version != VERSION
    assert run(*command).code == 0 and len(stub.asked) == 6, "nothing is paid for twice"
    own_prompts(tmp_path / "own.toml", system="Other.")
    assert run(*command).code == 0 and len(stub.asked) == 12


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": None}, "lacks prompts: labels"),
        ({"labels": "Which of {sentences}?"}, "synthesis.labels, lacks the field {question}"),
        ({"lables": "a"}, "has unknown prompts: lables"),
    ],
)
def test_prompts_that_cannot_be_used(run, stub, books, tmp_path, changed, message):
    own = own_prompts(tmp_path / "own.toml", **changed)
    done = run("lab", "synthesize", books, "--to", "out", "--prompts", own)
    assert done.code == 1 and message in done.err and not stub.asked
    assert not (tmp_path / "out").exists()
    for text in ("a = [", "synthesis = 3", ""):
        (tmp_path / "own.toml").write_text(text)
        assert "own.toml" in run("lab", "synthesize", books, "--to", "out", "--prompts", own).err


@pytest.mark.parametrize(("strategy", "requests"), [("chunk", 1), ("pair", 1), ("link", 3)])
@pytest.mark.parametrize("unit", ["sentence", "clauses"])
def test_examples_for_training(run, stub, books, tmp_path, strategy, requests, unit):
    options = ("--strategy", strategy, "--unit", unit, "--limit", 7, *LENGTHS, "--json")
    ended = run("lab", "synthesize", books, "--to", "out", *options)
    facts = json.loads(ended.out)
    assert ended.code == 0 and facts["examples"] == 7 and facts["rejected"] == {}, ended.err
    assert len(stub.asked) == 7 * requests == facts["used"]["requests"]
    assert sorted(facts["examples_by_length"].values()) == [3, 4]
    found = read_rows(tmp_path / "out" / f"{strategy}.jsonl")
    for row in found:
        source = open(row["source"], encoding="utf-8").read()
        document = row["document"]
        source = source[row["source_start"] :]
        if unit == "clauses":  # as the models of this unit read it
            assert ". " not in document.removesuffix(". ") and ". " in source
            source, document = ("".join(one.split()) for one in (source, document))
        assert source.startswith(document)
        spans = row["evidence"]
        places = row["places"]
        shown = [row["document"][a:b] for a, b in spans]
        assert len(spans) == 2 and [one.strip() for one in shown] == shown
        assert places[0][0] == spans[0][0] and places[-1][1] == spans[-1][1], (
            "the first and last unit shown"
        )
        assert len(places) == (1 if strategy == "chunk" else 2)
        assert (row["connection"] is None) == (row["distance"] is None) == (strategy == "chunk")
        assert strategy != "link" or row["distance"] >= 10
        assert (
            row["tokens"] <= row["length"]
            and row["answer"] == "He repaired wheels."
            and row["prompts"] == VERSION
        )
        assert (row["strategy"], row["unit"], row["llm_model"]) == (strategy, unit, "stub")
        assert ("units" in row) == (unit == "clauses"), (
            "which other tokenizers would group in another way"
        )
        assert {*shown} <= {row["document"][a:b].strip() for a, b in row.get("units", spans)}
    assert len({row["id"] for row in found}) == 7
    counts = Dropped()
    examples = list(read_evidence(tmp_path / "out" / f"{strategy}.jsonl", dropped=counts))
    assert str(counts) == "7 examples kept" and [one.query for one in examples] == [
        row["question"] for row in found
    ]


def test_a_report_for_readers_and_bad_replies_by_reason(run, stub, books, tmp_path):
    ended = run(
        "lab",
        "synthesize",
        books,
        "--to",
        "out",
        "--strategy",
        "chunk",
        "--limit",
        2,
        "--lengths",
        "1000",
    )
    facts = json.loads((tmp_path / "out" / "chunk.json").read_text())
    written = sum(len(follow(asked["messages"]).split()) for asked in stub.asked)
    assert (facts["used"]["prompt_tokens"], facts["used"]["completion_tokens"]) == (14, written)
    assert facts["per_million_examples"] == {
        "input_tokens": 7e6,
        "output_tokens": written / 2 * 1e6,
    }
    assert "2 examples from 2 subsequences (2 of 1,000 tokens)\n" in ended.out
    answers = iter(["no JSON", "{", '{"question": 1}', "[]"])
    stub.rule = lambda messages: next(answers, None) or follow(messages)
    ended = run(
        "lab",
        "synthesize",
        books,
        "--to",
        "bad",
        "--strategy",
        "chunk",
        "--limit",
        3,
        "--threads",
        1,
        *LENGTHS,
    )
    assert ended.code == 0 and "3 examples from 7 subsequences" in ended.out
    for note in ("2 replies that are not JSON", "2 replies of another form than requested"):
        assert f"runnel: note: rejected: {note}\n" in ended.err


@pytest.mark.parametrize("exclude", ["test.jsonl", "qa:sets"])
def test_a_test_set_and_other_languages_are_left_out_before_anything_is_asked(
    run, stub, books, tmp_path, exclude
):
    document = story(30, name="Keeper2")
    write_rows(tmp_path / "test.jsonl", [{"question": "q", "document": document}])
    row = {
        "input": "Who?",
        "context": document,
        "answers": ["He."],
        "_id": "1",
        "dataset": "narrativeqa",
    }
    write_rows(tmp_path / "sets" / "narrativeqa.jsonl", [row])
    german = (
        "Im Jahr {n} verkaufte der Müller der alten Mühle den Bäckern der Stadt {n} Säcke von"
        " seinem Mehl. "
    )
    write_rows(books / "de.txt", ["".join(german.format(n=n) for n in range(100))])
    command = (
        "lab",
        "synthesize",
        books,
        "--to",
        "out",
        "--strategy",
        "chunk",
        *LENGTHS,
        "--json",
        "--exclude",
    )
    facts = json.loads(run(*command, exclude, "--language", "en").out)
    reasons = ("subsequences that overlap with a test set", "subsequences that are not in en")
    left_out = [facts["rejected"][reason] for reason in reasons]
    assert min(left_out) >= 1 and facts["examples"] + sum(left_out) == facts["subsequences"]
    assert len(stub.asked) == facts["examples"] and "Müller" not in json.dumps(
        stub.asked, ensure_ascii=False
    )
    assert not any("Keeper2 repaired wheel 7." in json.dumps(one) for one in stub.asked)
    assert "error: books has no files of LongBench" in run(*command, "qa:books").err


def test_examples_without_a_language_model(run, tmp_path):
    folder = tmp_path / "manuals"
    for name in (0, 1, 2, "copy"):
        n = 0 if name == "copy" else name
        text = (
            f"# Wheel {n} in winter\n\nKeeper Berg repaired wheel {n} every winter.\n\n#"
            " Note\n\nNone."
        )
        write_rows(folder / f"{name}.md", [text])
    ended = run("lab", "synthesize", "manuals", "--without-llm", "--to", "out")
    assert (
        ended.code == 0
        and ended.out == "out/structure.jsonl: 3 examples from 3 parts of documents (3 heading)\n"
    )
    assert "note: left out: 1 document with the same text as another\n" in ended.err
    found = read_rows(tmp_path / "out" / "structure.jsonl")
    asked = [row["question"] for row in found]
    assert sorted(asked) == [f"Wheel {n} in winter" for n in range(3)]
    assert [
        example.query
        for example in read_evidence(tmp_path / "out" / "structure.jsonl", dropped=Dropped())
    ] == asked
    for row in found:
        ((start, end),) = row["evidence"]
        assert (
            row["document"][start:end].startswith("Keeper Berg repaired")
            and row["strategy"] == "heading"
        )
    assert run("index", "manuals", "--to", "library").code == 0
    assert run("lab", "synthesize", "library", "--without-llm", "--to", "indexed").code == 0
    indexed = read_rows(tmp_path / "indexed" / "structure.jsonl")
    assert {row["source"] for row in indexed} < {
        f"library: {folder}/{name}.md" for name in (0, 1, 2, "copy")
    }
    assert sorted(row["document"] for row in indexed) == sorted(row["document"] for row in found)
    ended = run(
        "lab",
        "synthesize",
        "manuals",
        "--without-llm",
        "--to",
        "out",
        "--limit",
        2,
        "--seed",
        1,
        "--json",
    )
    facts = json.loads((tmp_path / "out" / "structure.json").read_text())
    assert (
        json.loads(ended.out)
        == facts
        == ask_structure(["manuals"], tmp_path / "python", limit=2, seed=1)
    )
    assert facts["examples"] == 2
    assert read_rows(tmp_path / "python" / "structure.jsonl") == read_rows(
        tmp_path / "out" / "structure.jsonl"
    )
    write_rows(tmp_path / "a.txt", ["A plain paragraph is all there is. It has two sentences."])
    ended = run("lab", "synthesize", "a.txt", "--without-llm", "--to", "out")
    assert (
        ended.code == 1
        and ended.out == "out/structure.jsonl: 0 examples from 1 part of documents (none)\n"
    )
    assert "note: rejected: 1 parts whose structure asks nothing\n" in ended.err
    assert (
        "note: no examples: headings, questions, definitions or lists with sentences are needed\n"
        in ended.err
    )
