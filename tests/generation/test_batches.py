"""Batches of requests: rounds of work, what goes wrong with a batch or a line of it, and crashes at any moment."""

import pytest
from helpers.stub_endpoint import serve

from runnel.errors import EndpointError, InputError
from runnel.generation import batches
from runnel.generation.batches import Batches
from runnel.generation.endpoint import Endpoint
from runnel.generation.replies import Budget, BudgetSpent, Deferred, Replies, Stopped, Usage


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(batches, "POLL_S", 0.01)
    with serve(lambda messages: f"reply to {messages[0]['content']}") as one:
        yield one


class Work:
    """Asks for the reply to each text, and then for the reply to that reply."""

    def __init__(self, stub, folder, texts, *, size=100, budget=None, endpoints=1):
        self.endpoints = [Endpoint(stub.url, f"model-{n}", retries=0) for n in range(endpoints)]
        self.path, self.texts, self.size, self.budget = folder / "store", texts, size, budget
        self.reports, self.found, self.problems = [], {}, []

    def run(self):
        with Replies(self.endpoints[0], self.path, budget=self.budget, batch_size=self.size) as replies:
            for number in Batches(replies, self.endpoints, self.reports.append).rounds():
                self.rounds, self.found, self.problems = number + 1, {}, []
                for at, text in enumerate(self.texts):
                    self._chain(replies, text, self.endpoints[at % len(self.endpoints)])
            self.replies = replies
        return self

    def _chain(self, replies, text, endpoint):
        try:
            first = self._ask(replies, text, endpoint)
            self.found[text] = self._ask(replies, first.text, endpoint).text
        except (EndpointError, Stopped) as error:
            self.problems.append(error)

    def _ask(self, replies, text, endpoint):
        return replies.ask([{"role": "user", "content": text}], max_tokens=10, version="1", endpoint=endpoint)


def test_work_ends_in_as_many_batches_as_it_has_steps(stub, tmp_path):
    work = Work(stub, tmp_path, ["a", "b", "c"]).run()
    assert work.found == {text: f"reply to reply to {text}" for text in "abc"} and not work.problems
    assert work.rounds == 3 and stub.batches.created == 2 and len(stub.asked) == 6
    assert work.replies.used == work.replies.spent == Usage(6, 42, 3 * (3 + 5))
    assert stub.asked[0] == {
        "model": "model-0", "messages": [{"role": "user", "content": "a"}], "max_tokens": 10, "temperature": 0.0
    }  # fmt: skip
    assert work.reports[:3] == [
        f"note: batch batch-1: 3 requests sent to {stub.url}",
        "note: batch batch-1: in_progress, 0 of 3 requests answered",
        "note: batch batch-1: completed, 3 of 3 requests answered",
    ]
    assert Work(stub, tmp_path, ["a", "b", "c"]).run().rounds == 1 and len(stub.asked) == 6, "all replies are stored"


def test_the_same_request_waits_once_and_two_models_have_two_batches(stub, tmp_path):
    work = Work(stub, tmp_path, ["a", "b", "a", "b"], endpoints=2).run()
    assert work.found == {"a": "reply to reply to a", "b": "reply to reply to b"}
    assert stub.batches.created == 4 and len(stub.asked) == 4
    assert {one["model"] for one in stub.asked} == {"model-0", "model-1"}


def test_a_full_batch_takes_no_more(stub, tmp_path, monkeypatch):
    work = Work(stub, tmp_path, ["a", "b", "c"], size=2).run()
    assert len(work.found) == 3 and len(stub.asked) == 6 and stub.batches.created > 2
    with Replies(work.endpoints[0], tmp_path / "other", batch_size=2) as replies:
        for text in "ab":
            with pytest.raises(Deferred):
                replies.ask([{"role": "user", "content": text}], max_tokens=1, version="1")
        with pytest.raises(Stopped, match="2 requests wait for a batch; no more were added"):
            replies.ask([{"role": "user", "content": "c"}], max_tokens=1, version="1")
    monkeypatch.setattr("runnel.generation.replies.BATCH_BYTES", 3)
    with Replies(work.endpoints[0], tmp_path / "third", batch_size=9) as replies:
        with pytest.raises(Deferred):
            replies.ask([{"role": "user", "content": "ab"}], max_tokens=1, version="1")
        with pytest.raises(Stopped, match="1 requests wait"):
            replies.ask([{"role": "user", "content": "cd"}], max_tokens=1, version="1")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (500, 'a request of a batch: 500: {"error": {"message": "fault 500"}}'),
        ("no text", "a request of a batch: the batch completed without it"),
        ("damaged", "a request of a batch: the batch completed without it"),
        ("missing", "a request of a batch: the batch completed without it"),
    ],
)
def test_a_line_that_goes_wrong_is_one_open_request(stub, tmp_path, fault, why):
    stub.batches.faults.extend([None, fault])
    work = Work(stub, tmp_path, ["a", "b", "c"]).run()
    assert list(work.found) == ["a", "c"] and [str(one) for one in work.problems] == [f"{stub.url} did not answer {why}"]
    sent = len(stub.asked)
    work = Work(stub, tmp_path, ["a", "b", "c"]).run()
    assert len(work.found) == 3 and len(stub.asked) == sent + 2


def test_a_batch_without_any_reply_is_an_error(stub, tmp_path):
    stub.batches.ending = "failed"
    with pytest.raises(EndpointError, match="the batch batch-1 failed without a reply: no batches today"):
        Work(stub, tmp_path, ["a"]).run()
    stub.batches.ending = "completed"
    stub.batches.faults.append(400)
    with pytest.raises(EndpointError, match=r"the batch batch-2 completed without a reply: 400: .*fault 400"):
        Work(stub, tmp_path, ["a"]).run()
    assert len(Work(stub, tmp_path, ["a"]).run().found) == 1


def test_an_expired_batch_keeps_its_replies(stub, tmp_path):
    stub.batches.ending = "expired"
    stub.batches.faults.extend([None, "missing"])
    work = Work(stub, tmp_path, ["a", "b"]).run()
    assert list(work.found) == ["a"] and "the batch expired without it" in str(work.problems[0])


@pytest.mark.parametrize(
    ("route", "message"), [("/files", "did not accept a file for a batch"), ("/batches", "did not accept a batch")]
)
def test_an_endpoint_without_batches_can_be_used_without_them(stub, tmp_path, route, message):
    post = stub.batches.post
    stub.batches.post = lambda path, *rest: None if path.endswith(route) else post(path, *rest)
    with pytest.raises(EndpointError, match=f"{message}: 404"):
        Work(stub, tmp_path, ["a"]).run()
    assert len(Work(stub, tmp_path, ["a"], size=None).run().found) == 1


def test_the_budget_holds_for_what_waits(stub, tmp_path):
    work = Work(stub, tmp_path, ["a", "b", "c"], budget=Budget(tokens=24)).run()  # 11 expected for each first request
    assert len(stub.asked) == 2 and not work.found and all(isinstance(one, BudgetSpent) for one in work.problems)
    assert work.replies.spent == Usage(2, 14, 6)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("place", ["upload", "create", "_set_id", "_wait", "read_results", "_forget"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_moment_costs_nothing(stub, tmp_path, monkeypatch, place, after):
    owner = batches if hasattr(batches, place) else Batches
    real = getattr(owner, place)

    def crash(*arguments):
        if after:
            result = real(*arguments)
            list(result) if place == "read_results" else None
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(owner, place, crash)
        with pytest.raises(Crash):
            Work(stub, tmp_path, ["a", "b"]).run()
    work = Work(stub, tmp_path, ["a", "b"]).run()
    assert work.found == {text: f"reply to reply to {text}" for text in "ab"}
    assert len(stub.asked) == 4 and stub.batches.created == 2, "nothing is sent twice"
    assert work.replies.spent.requests == 4


def test_a_batch_under_way_is_not_ignored(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(Batches, "_wait", lambda *arguments: (_ for _ in ()).throw(Crash()))
    with pytest.raises(Crash):
        Work(stub, tmp_path, ["a"]).run()
    with pytest.raises(InputError, match=r"a batch of an earlier run is under way at .*; repeat the command with batches"):
        Work(stub, tmp_path, ["a"], size=None).run()
    with serve(lambda messages: "") as other, pytest.raises(InputError, match="give this endpoint again"):
        Work(other, tmp_path, ["a"]).run()


def test_without_batches_there_is_one_round(stub, tmp_path):
    work = Work(stub, tmp_path, ["a", "b"], size=None).run()
    assert work.rounds == 1 and len(work.found) == 2 and stub.batches.created == 0
