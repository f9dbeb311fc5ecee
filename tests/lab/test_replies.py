"""Stored replies: nothing is paid for twice, by threads, runs or after failures."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers.children import GIVE_UP_S

from runnel.errors import EndpointError
from runnel.generation.endpoint import Endpoint, Reply
from runnel.lab.replies import Inquiry, Stopped, stored_replies


def say(text):
    return [{"role": "user", "content": text}]


def rule(messages):  # of `stub`
    return f"reply to {messages[0]['content']}"


@pytest.fixture
def endpoint(stub):
    return Endpoint(stub.url, "stub", retries=0, timeout_s=GIVE_UP_S)


def ask(replies, text, max_tokens=10, version="1"):
    return replies.ask(say(text), max_tokens=max_tokens, version=version)


def used(replies):
    """Return the requests of this run and their tokens, read and written, by version."""
    return {
        version: (one["requests"], one["prompt_tokens"], one["completion_tokens"])
        for version, one in replies.used.items()
    }


def test_a_reply_is_paid_for_once(stub, endpoint, tmp_path):
    with stored_replies(tmp_path, endpoint) as replies:
        first = ask(replies, "a")
        assert ask(replies, "a") == first == Reply("reply to a", "stop", 7, 3)
        assert used(replies) == {"1": (1, 7, 3)}
    with stored_replies(tmp_path, endpoint) as replies:
        assert used(replies) == {}
        assert ask(replies, "a") == first and used(replies) == {"1": (1, 7, 3)}
    assert len(stub.asked) == 1


def test_what_makes_another_request(stub, endpoint, tmp_path):
    judge = Endpoint(stub.url, "judge", retries=0)
    with stored_replies(tmp_path, endpoint) as replies:
        for _ in range(2):
            ask(replies, "a")
            ask(replies, "b")
            ask(replies, "a", max_tokens=11)
            ask(replies, "a", version="2")
            replies.ask(say("a"), max_tokens=10, version="judge", endpoint=judge)
        assert used(replies) == {"1": (3, 21, 9), "2": (1, 7, 3), "judge": (1, 7, 3)}
    assert [one["model"] for one in stub.asked] == ["stub"] * 4 + ["judge"]


def test_threads_share_replies_and_ask_at_the_same_time(stub, endpoint, tmp_path):
    together = threading.Barrier(4, timeout=GIVE_UP_S)
    stub.rule = lambda messages: f"{together.wait()}"
    with stored_replies(tmp_path, endpoint) as replies, ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: ask(replies, f"{n % 4}").text, range(40)))
        assert (
            sorted(texts[:4]) == list("0123")
            and texts == texts[:4] * 10
            and used(replies) == {"1": (4, 28, 4)}
        )
    assert len(stub.asked) == 4


def test_failed_requests_are_not_stored_and_an_endpoint_that_goes_on_failing_is_left_alone(
    stub, endpoint, tmp_path
):
    with stored_replies(tmp_path, endpoint) as replies:
        for fault in (500, 429, "malformed", "no text"):
            stub.faults.append(fault)
            with pytest.raises(EndpointError):
                ask(replies, "a")
        assert ask(replies, "a").text == "reply to a" and used(replies) == {"1": (1, 7, 3)}
        stub.faults.extend([500] * 5)
        for number in range(5):
            with pytest.raises(EndpointError):
                ask(replies, f"{number}")
        with pytest.raises(Stopped, match=stub.url):
            ask(replies, "5")
        inquiry = Inquiry(replies)
        assert list(inquiry.run(lambda text, notes: ask(replies, text).text, "6a")) == [
            ("6", None),
            ("a", "reply to a"),
        ]
        assert "failed 5 requests in a row" in str(inquiry.stopped) and inquiry.failure is None
    assert len(stub.asked) == 10


def test_tokens_that_the_endpoint_does_not_count_are_estimated(tmp_path):
    endpoint = SimpleNamespace(
        model="m", url="u", complete=lambda messages, **more: Reply("twelve chars", "stop")
    )
    for _ in range(2):  # the second is read from the store
        with stored_replies(tmp_path, endpoint) as replies:
            ask(replies, "seven..")
            assert used(replies) == {"1": (1, 3, 4)} and replies.used["1"]["estimated"] == 1


def test_no_password_in_notes_errors_and_stored_replies(stub, tmp_path, capsys, caplog):
    endpoint = Endpoint(stub.url.replace("http://", "http://me:s3cr3t-word@"), "stub", retries=0)
    stub.rule = lambda messages: "Authorization: Basic bWU6czNjcjN0LXdvcmQ= of me:s3cr3t-word"
    shown = []
    with stored_replies(tmp_path / "store", endpoint, endpoint) as replies:
        shown.append(ask(replies, "a").text)
        stub.faults.extend(["repeats"] * 5)
        inquiry = Inquiry(replies, threads=1)
        list(inquiry.run(lambda text, notes: ask(replies, text).text, "bcdefg"))
        shown += [str(inquiry.failure), str(inquiry.stopped)]
    shown += [
        "".join(capsys.readouterr()),
        caplog.text,
        *(path.read_bytes().decode(errors="replace") for path in (tmp_path / "store").iterdir()),
    ]
    assert stub.asked and not [one for one in shown if "s3cr3t" in one or "bWU6czNj" in one]
    assert [bool("***" in one) for one in shown] == [
        1,
        1,
        1,
        0,
        1,
        1,
    ] and "failed 5 requests" in shown[2]
