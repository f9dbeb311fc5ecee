"""A language model's endpoint that answers by rule, and misbehaves on order."""

import sys
import time
from contextvars import ContextVar

import pytest
from helpers.stub_endpoint import Stub, serve

from runnel.errors import EndpointError, InputError, MissingDependency
from runnel.generation import endpoint
from runnel.generation.endpoint import Endpoint

ASK = [{"role": "user", "content": "name a color"}]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(lambda messages: f"You said: {messages[-1]['content']}. Blue — 蓝.") as one:
        yield one


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_streamed_or_whole(stub: Stub, streamed: bool) -> None:
    parts: list[str] = []
    reply = Endpoint(stub.url).complete(ASK, max_tokens=50, on_text=parts.append if streamed else None)
    assert reply.text == "You said: name a color. Blue — 蓝." and reply.finish == "stop"
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 8)
    assert "".join(parts) == (reply.text if streamed else "") and len(parts) == (11 if streamed else 0)
    [asked] = stub.asked
    assert asked["model"] == "stub" and asked["max_tokens"] == 50 and asked["temperature"] == 0 and asked["messages"] == ASK


@pytest.mark.parametrize("streamed", [False, True])
def test_a_busy_endpoint_is_asked_again(stub: Stub, streamed: bool) -> None:
    stub.faults.extend([429, 500, 503])
    reply = Endpoint(stub.url).complete(ASK, max_tokens=5, on_text=(lambda text: None) if streamed else None)
    assert reply.text.startswith("You said") and len(stub.asked) == 4


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([429, 429], ".*429"),
        ([500, 500], ".*500"),
        ([400], ".*400"),
        (["malformed"], "did not answer as expected"),
        (["no text"], "did not answer as expected"),
        (["slow", "slow"], "did not answer in time"),
    ],
)
def test_what_an_endpoint_does_wrong_is_one_error(stub: Stub, faults: list, message: str) -> None:
    stub.faults.extend(faults)
    with pytest.raises(EndpointError, match=f"{stub.url} {message}"):
        Endpoint(stub.url, "stub", retries=1, timeout_s=0.3).complete(ASK, max_tokens=5)
    assert len(stub.asked) == len(faults), "mistakes of ours are not repeated"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fault", "bound"),
    [("words", r"more than [\d,]+ (characters|bytes)"), ("line", r"more than [\d,]+ bytes"), ("comments", "not ended after 1 s")],
)
def test_an_answer_without_end_is_one_error(stub: Stub, fault: str, bound: str, streamed: bool, monkeypatch) -> None:
    monkeypatch.setattr(endpoint, "_SECONDS_PER_TOKEN", 0.1 if fault == "comments" else 60.0)
    parts: list[str] = []
    stub.faults.append(fault)
    with pytest.raises(EndpointError, match=f"{stub.url} .*{bound}"):
        Endpoint(stub.url, "stub", timeout_s=0.5).complete(ASK, max_tokens=5, on_text=parts.append if streamed else None)
    assert len(stub.asked) == 1 and len("".join(parts)) < 11_000


def test_the_list_of_models_is_bounded_too(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ContextVar[endpoint._Limits]("limits")
    limits.set(endpoint._Limits(size=99))
    monkeypatch.setattr(endpoint, "_LIMITS", limits)
    stub.models = ["long" * 99]
    with pytest.raises(EndpointError, match=f"{stub.url} did not list its models .*more than 99 bytes"):
        _ = Endpoint(stub.url).model


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_is_not_sent_to_where_an_endpoint_redirects(stub: Stub, streamed: bool) -> None:
    stub.faults.append("moved")
    with pytest.raises(EndpointError, match=f"{stub.url} .* 'http://localhost:.*/v1/chat/completions'"):
        Endpoint(stub.url, "stub").complete(ASK, max_tokens=5, on_text=(lambda text: None) if streamed else None)
    assert len(stub.asked) == 1


def test_an_endpoint_that_does_not_stream_answers_with_one_object(stub: Stub) -> None:
    stub.faults.append("not streamed")
    parts: list[str] = []
    reply = Endpoint(stub.url).complete(ASK, max_tokens=5, on_text=parts.append)
    assert parts == [reply.text] == ["You said: name a color. Blue — 蓝."]
    assert (reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("stop", 7, 8)


def test_a_stream_that_ends_early_is_no_reply(stub: Stub) -> None:
    stub.faults.append("truncated")
    parts: list[str] = []
    with pytest.raises(EndpointError, match="after 15 characters"):
        Endpoint(stub.url).complete(ASK, max_tokens=5, on_text=parts.append)
    assert "".join(parts) == "You said: name " and len(stub.asked) == 1, "what has been shown is not asked again"


def test_a_reply_cut_at_its_limit_says_so(stub: Stub) -> None:
    stub.faults.append("cut")
    assert Endpoint(stub.url).complete(ASK, max_tokens=5).finish == "length"


def test_the_model_must_be_clear(stub: Stub) -> None:
    stub.models = ["small", "large"]
    with pytest.raises(EndpointError, match=r"2 models \(small, large\)"):
        Endpoint(stub.url).complete(ASK, max_tokens=5)
    assert Endpoint(stub.url, "large").model == "large"
    stub.loading = 9
    with pytest.raises(EndpointError, match=r"503: .*--llm-model"):
        Endpoint(stub.url, retries=1).complete(ASK, max_tokens=5)


def test_an_endpoint_that_is_not_running_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    endpoint = Endpoint("http://127.0.0.1:9/v1")
    with pytest.raises(EndpointError, match=r"127.0.0.1:9/v1 cannot be reached"):
        endpoint.complete(ASK, max_tokens=5)
    assert not waits
    with pytest.raises(EndpointError, match=r"127.0.0.1:9/v1 cannot be reached"):
        Endpoint("http://127.0.0.1:9/v1", "named").complete(ASK, max_tokens=5)
    assert len(waits) == 5  # where the model is named nothing is asked before, and a request is repeated


def test_an_endpoint_that_still_loads_its_model_is_asked_again(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.loading = 2
    assert Endpoint(stub.url).model == "stub" and stub.loading == 0


def test_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'localhost:80'"):
        Endpoint("localhost:80")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="--llm"):
        Endpoint(model="any")
    assert Endpoint(key="secret").url == "https://api.openai.com/v1"
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingDependency, match=r"\[answers\]"):
        Endpoint("http://127.0.0.1:9/v1")


def test_an_error_of_the_caller_is_its_own(stub: Stub) -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Endpoint(stub.url).complete(ASK, max_tokens=5, on_text=closed)
