"""`runnel ask` with an endpoint that answers by rule."""

import json

import pytest

TEXT = "The river was low. The keeper of the mill was Anna Berg. She sold flour. Bread was dear.\n"
QUESTION = "who was the keeper of the mill"


def rule(messages):  # of `stub`: an answer that cites the first excerpt about her
    for excerpt in messages[1]["content"].split("\n\n")[1:-1]:
        if "Anna Berg" in excerpt:
            return (
                f'Anna Berg {excerpt[: excerpt.index("]") + 1]}; "the keeper of the mill was Anna'
                ' Berg" [9].'
            )
    return "NO ANSWER"


@pytest.fixture
def mill(tmp_path):
    path = tmp_path / "mill.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_an_answer_with_its_sources(run, fake, stub, mill):
    ended = run("ask", QUESTION, mill, "-k", 1).ok()
    assert (
        ended.out
        == f'Anna Berg [1]; "the keeper of the mill was Anna Berg".\n\n[1] {mill}:1  characters'
        " 0-73\n    The river was low. The keeper of the mill was Anna Berg. She sold"
        " flour.\n\n"
    )
    assert ended.err == "runnel: note: removed from the answer: [9]; it read 1 excerpt\n"
    [asked] = stub.asked
    assert asked["model"] == "stub" and asked["stream"] and asked["max_tokens"] == 1000
    ended = run("ask", QUESTION, mill, mill.parent / "missing.txt", "--json", "--answer-tokens", 50)
    found = json.loads(ended.out)
    assert ended.code == 2, "a file is missing, as for grep"
    assert (
        found["question"] == QUESTION
        and found["llm_model"] == "stub"
        and stub.asked[1]["max_tokens"] == 50
    )
    assert found["answer"] == 'Anna Berg [1]; "the keeper of the mill was Anna Berg".'
    assert (found["cited"], found["removed_citations"], found["unsourced"], found["misquoted"]) == (
        [1],
        [9],
        [],
        [],
    )
    assert [TEXT[one["start"] : one["end"]] for one in found["excerpts"]] == [
        one["text"] for one in found["excerpts"]
    ]
    assert found["prompt_tokens"] == 7 and found["finish"] == "stop" and found["left_out"] == 0
    assert [one["file"] for one in found["skipped"]] == [str(mill.parent / "missing.txt")]


def test_no_answer_is_said_and_not_invented(run, fake, stub, tmp_path):
    (tmp_path / "other.txt").write_text("Nothing of the kind.", encoding="utf-8")
    ended = run("ask", QUESTION, "other.txt")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "runnel: 1 excerpt read; the language model finds no answer there\n"
    stub.rule = lambda _: " "
    assert (
        run("ask", QUESTION, "other.txt").err
        == "runnel: 1 excerpt read; the language model's reply is empty\n"
    )
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    ended = run("ask", QUESTION, "empty.txt")
    assert (ended.code, ended.out, len(stub.asked)) == (1, "", 2), "the third was not asked"
    assert ended.err.endswith("runnel: nothing found; the language model was not asked\n")


def test_improbable_sentences_are_not_asked_about(run, fake, stub, mill):
    ended = run("ask", QUESTION, mill, "--min-score", 99)
    message = "no sentence has a score of 99 or more; the language model was not asked"
    assert (ended.code, ended.out, ended.err, stub.asked) == (1, "", f"runnel: {message}\n", [])
    assert json.loads(run("ask", QUESTION, mill, "--min-score", 99, "--json").out)["answer"] is None
    run("ask", QUESTION, mill, "--min-score", "20%").refused("pocket", "--min-score", code=2)
    fake.find.calibrated = True
    # the sentence has six of the words
    assert run("ask", QUESTION, mill, "--min-score", "98%").code == 0
    [asked] = stub.asked
    assert "Anna Berg" in str(asked) and "Bread was dear" not in str(asked)
    fake.find.answers = -3.0  # nothing seems to answer
    ended = run("ask", QUESTION, mill)
    assert (ended.code, ended.out, len(stub.asked)) == (
        1,
        "",
        1,
    ) and "(5 %); the language model was not asked" in ended.err
    found = json.loads(run("ask", QUESTION, mill, "--json").out)
    assert (found["answer"], round(found["answers"], 3), len(stub.asked)) == (None, 0.047, 1)
    ended = run("ask", QUESTION, mill, "--anyway", "--json")
    assert (
        ended.code == 0
        and len(stub.asked) == 2
        and round(json.loads(ended.out)["answers"], 3) == 0.047
    )
    fake.find.answers = 1.0
    assert run("ask", QUESTION, mill).code == 0


def test_notes_about_an_answer_and_sentences_without_a_source(run, fake, stub, mill):
    stub.rule = lambda messages: 'It says "the keeper was a man named Ole". '
    stub.faults.append("cut")
    ended = run("ask", QUESTION, mill, "--answer-tokens", 9)
    assert (
        ended.code == 3
        and ended.err
        == "runnel: note: the answer cites no excerpt\n"
        'runnel: note: no excerpt says, word for word: "the keeper was a man named Ole"\n'
        "runnel: note: the answer was cut at 9 tokens; raise --answer-tokens\n"
    )
    stub.rule = lambda messages: "Anna Berg [1]. It also frees the disk [7]. She sold flour."
    ended = run("ask", QUESTION, mill, "-k", 1)
    assert ended.out.startswith(
        "Anna Berg [1]. It also frees the disk. (no source) She sold flour. (no source)\n\n[1] "
    )
    assert ended.code == 3 and "note: 2 sentences without a source\n" in ended.err
    ended = run("ask", QUESTION, mill, "-k", 1, "--json")
    assert ended.code == 3 and json.loads(ended.out)["unsourced"] == [
        "It also frees the disk.",
        "She sold flour.",
    ]
    assert run("ask", QUESTION, mill, "missing.txt").code == 2
    stub.rule = lambda messages: "# Anna Berg"
    assert run("ask", QUESTION, mill).code == 3, "a heading alone cites nothing either"


def test_an_index(run, stub, mill, tmp_path):
    (tmp_path / "bread.txt").write_text("Bread is made of flour. It is baked.", encoding="utf-8")
    assert run("index", "mill.txt", "bread.txt").code == 0
    ended = run("ask", QUESTION, "--in", ".runnel/index", "--json")
    found = json.loads(ended.out)
    assert (
        ended.code == 0
        and found["answer"].startswith("Anna Berg [1]")
        and found["excerpts"][0]["file"].endswith("mill.txt")
    )
    assert (
        run("ask", QUESTION, "--no-update", "--min-score", "99.9%").code == 1
        and len(stub.asked) == 1
    )
    [source] = [one for one in found["excerpts"] if "Anna Berg" in one["text"]]
    assert TEXT[source["start"] : source["end"]] == source["text"]
    # the project is updated, and asked
    mill.write_text(TEXT.replace("Anna Berg", "Anna Berg of Lund"), encoding="utf-8")
    ended = run("ask", QUESTION)
    assert (
        ended.code == 0
        and ended.out.startswith("Anna Berg [1]")
        and "Anna Berg of Lund" in ended.out
    ), ended.err


@pytest.mark.parametrize("fault", ["repeats", "moved with it", 503, "echo"])
@pytest.mark.parametrize("form", ["--llm", "OPENAI_BASE_URL"])
def test_no_password_is_shown(run, fake, stub, mill, monkeypatch, fault, form):
    url = stub.url.replace("http://", "http://me:s3cr3t-word@")
    monkeypatched = "http://127.0.0.1:9/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", monkeypatched if form == "--llm" else url)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    stub.faults.extend([fault] * 9)
    stub.rule = lambda messages: "Anna Berg, s3cr3t-word [1]."
    given = ("--llm", url) if form == "--llm" else ()
    ended = run("ask", QUESTION, mill, *given, "--json", "--verbose")
    assert (
        stub.asked
        and "s3cr3t" not in ended.out + ended.err
        and "bWU6czNjcjN0" not in ended.out + ended.err
    )
    assert ended.code == (0 if fault == "echo" else 2) and "***" in ended.out + ended.err
