"""A language model's endpoint that answers by rule, and misbehaves on order."""

import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from helpers.byte_tokenizer import Bytes
from helpers.stub_endpoint import Stub

from runnel.errors import EndpointError, InputError, MissingDependency
from runnel.generation import endpoint
from runnel.generation.endpoint import Endpoint, LocalModel

ASK = [{"role": "user", "content": "name a color"}]


def rule(messages):  # of `stub`
    return f"You said: {messages[-1]['content']}. Blue — 蓝."


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def parts(request) -> list[str] | None:
    """What a streamed reply is shown as; None: it is not streamed."""
    return [] if request.param else None


def ask(stub: Stub, parts: list[str] | None = None, model: str | None = None, **options):
    on_text = None if parts is None else parts.append
    return Endpoint(stub.url, model, **options).complete(ASK, max_tokens=5, on_text=on_text)


@pytest.mark.parametrize("fault", [None, "not streamed"])
def test_a_reply_streamed_or_whole(stub: Stub, parts: list[str] | None, fault: str | None) -> None:
    stub.faults.append(fault)
    reply = ask(stub, parts)
    assert reply.text == "You said: name a color. Blue — 蓝." and reply.finish == "stop"
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 8)
    assert parts is None or ("".join(parts) == reply.text and len(parts) == (1 if fault else 11))
    [asked] = stub.asked
    assert (
        asked["model"] == "stub"
        and asked["max_tokens"] == 5
        and asked["temperature"] == 0
        and asked["messages"] == ASK
    )


def test_a_busy_endpoint_is_asked_again(stub: Stub, parts: list[str] | None) -> None:
    stub.faults.extend([429, 500, 503, "cut"])
    reply = ask(stub, parts)
    assert reply.text.startswith("You said") and len(stub.asked) == 4 and reply.finish == "length"


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([429, 429], ".*429"),
        ([500, 500], ".*500"),
        ([400], ".*400"),
        (["malformed"], "did not answer as expected"),
        (["no text"], "did not answer as expected"),
        (["slow", "slow"], "did not answer in time"),
        (["moved"], ".* 'http://localhost:.*/v1/chat/completions'"),  # where the prompt is not sent
    ],
)
def test_what_an_endpoint_does_wrong_is_one_error(
    stub: Stub, parts: list[str] | None, faults: list, message: str
) -> None:
    stub.faults.extend(faults)
    with pytest.raises(EndpointError, match=f"{stub.url} {message}"):
        ask(stub, parts, "stub", retries=1, timeout_s=0.3)
    assert len(stub.asked) == len(faults), "mistakes of ours are not repeated"


@pytest.mark.parametrize(
    ("fault", "bound"),
    [
        ("words", r"more than [\d,]+ (characters|bytes)"),
        ("line", r"more than [\d,]+ bytes"),
        ("comments", "not ended after 1 s"),
    ],
)
def test_an_answer_without_end_is_one_error(
    stub: Stub, fault: str, bound: str, parts: list[str] | None, monkeypatch
) -> None:
    monkeypatch.setattr(endpoint, "_SECONDS_PER_TOKEN", 0.1 if fault == "comments" else 60.0)
    stub.faults.append(fault)
    with pytest.raises(EndpointError, match=f"{stub.url} .*{bound}"):
        ask(stub, parts, "stub", timeout_s=0.5)
    assert len(stub.asked) == 1 and len("".join(parts or [])) < 11_000


@pytest.mark.parametrize("width", [1536, 3072, 8192])
def test_many_wide_vectors_fit_into_an_answer(stub: Stub, width: int) -> None:
    # 17 digits and an exponent: as long as JSON writes a number
    stub.vector = lambda text: [-1.2345678901234567e-05] * width
    vectors = Endpoint(stub.url, "stub", retries=0).embed([f"text {i}" for i in range(128)])
    assert np.shape(vectors) == (128, width) and vectors[0][0] == -1.2345678901234567e-05


def test_embeddings_without_end_are_one_error(stub: Stub, monkeypatch) -> None:
    stub.faults.append("line")
    monkeypatch.setattr(endpoint, "_BYTES_PER_VECTOR", 1000)
    most = endpoint._SPARE_BYTES + 3 * 1000
    with pytest.raises(EndpointError, match=f"{stub.url} .*more than {most:,} bytes"):
        Endpoint(stub.url, "stub").embed(["one", "two", "three"])
    stub.faults.append("comments")
    with pytest.raises(EndpointError, match=f"{stub.url} .*not ended after 1 s"):
        Endpoint(stub.url, "stub", timeout_s=1.0).embed(["one"])
    assert len(stub.asked) == 2, "neither is asked again"


def test_a_stream_that_ends_early_is_no_reply(stub: Stub) -> None:
    stub.faults.append("truncated")
    parts: list[str] = []
    with pytest.raises(EndpointError, match="after 15 characters"):
        ask(stub, parts)
    assert "".join(parts) == "You said: name " and len(stub.asked) == 1, (
        "what has been shown is not asked again"
    )


def test_the_model_must_be_clear(stub: Stub) -> None:
    stub.models = ["small", "large"]
    with pytest.raises(EndpointError, match=r"2 models \(small, large\)"):
        ask(stub)
    assert Endpoint(stub.url, "large").model == "large"
    stub.loading = 9
    with pytest.raises(EndpointError, match=r"503: .*--llm-model"):
        ask(stub, retries=1)
    stub.models = ["stub"]
    stub.loading = 2
    assert Endpoint(stub.url).model == "stub" and stub.loading == 0, (
        "it is asked again while it loads its model"
    )


def test_an_endpoint_that_is_not_running_is_reported_at_once(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    stub.url = "http://127.0.0.1:9/v1"
    # where the model is named nothing is asked before, and requests are repeated
    for model, count in ((None, 0), ("named", 5)):
        with pytest.raises(EndpointError, match=r"127.0.0.1:9/v1 cannot be reached"):
            ask(stub, model=model)
        assert len(waits) == count


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


KEY = "sk-1234/abcd+efgh=="
SECRETS = {  # how they are given to a stub at HOST -> what may not be shown
    "http://me:s3cr3t@HOST/v1": ["s3cr3t", "bWU6czNjcjN0"],
    "http://me:p%40ss%2fword@HOST/v1": [
        "p%40ss",
        "p%40ss%2Fword",
        "p@ss",
        "/word",
        "%2fword",
        "bWU6cEBzcy93b3Jk",
    ],
    "http://me:pa/ss:w@rd@HOST/v1": ["pa/ss", "w@rd", "ss:w", "bWU6cGEvc3M6d0ByZA"],
    "http://m%C3%A9:s%C3%A9cr%C3%A9t@HOST/v1": ["sécrét", "s%C3%A9cr", "bcOpOnPDqWNyw6l0"],
    "http://t0k3n-of-me@HOST/v1": ["t0k3n-of-me", "dDBrM24tb2YtbWU6"],
    "http://t0k3n-of-me:@HOST/v1": ["t0k3n-of-me", "dDBrM24tb2YtbWU6"],
    "http://:s3cr3t@HOST/v1": ["s3cr3t", "OnMzY3IzdA"],
    "http://me:pw@HOST/v1": ["me:pw", "bWU6cHc"],
    "http://HOST/v1?api_key=s3cr3t&version=1": ["s3cr3t"],
    "http://HOST/v1?x=1&access_token=s3%2Bcr3t": ["s3%2Bcr3t", "s3+cr3t"],
    "http://HOST/v1?sig=s3cr3t;sv=1": ["s3cr3t"],
}


def shown_of(call) -> str:
    """Return all that an error of a call shows, with its causes."""
    with pytest.raises(EndpointError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("fault", ["repeats", "moved with it", "malformed", "refused"])
@pytest.mark.parametrize("url", SECRETS)
def test_no_password_in_errors_and_logs(stub: Stub, url: str, fault: str, caplog) -> None:
    caplog.set_level("INFO")
    host = stub.url.removeprefix("http://").removesuffix("/v1")
    endpoint = Endpoint(
        url.replace("HOST", "127.0.0.1:9" if fault == "refused" else host), "stub", retries=0
    )
    stub.faults.append(fault)
    shown = shown_of(lambda: endpoint.complete(ASK, max_tokens=5))
    logged = "" if "?" in url else caplog.text  # httpx writes the addresses of requests
    assert not [secret for secret in SECRETS[url] if secret in shown + logged + endpoint.url], shown
    assert (
        "127.0.0.1" in endpoint.url
        and endpoint.url in shown
        and (fault == "refused" or len(stub.asked) == 1)
    )


def test_the_password_is_sent(stub: Stub) -> None:
    headers = {
        "me:p%40ss@": "Basic bWU6cEBzcw==",
        "me:p/s@s@": "Basic bWU6cC9zQHM=",
        "": "Bearer none",
    }
    for user, header in headers.items():
        Endpoint(stub.url.replace("http://", f"http://{user}"), "stub").complete(ASK, max_tokens=5)
        assert stub.headers[-1]["Authorization"] == header


@pytest.mark.parametrize("fault", ["repeats", "moved with it"])
def test_no_key_in_errors_also_where_they_are_cut(
    stub: Stub, parts: list[str] | None, fault: str, monkeypatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    hidden = 0
    for stub.padding in range(0, 260, 7):
        stub.faults.append(fault)
        key = None if stub.padding % 2 else "other-key-of-26-characters"
        shown = shown_of(lambda key=key: ask(stub, parts, "stub", key=key, retries=0))
        used = key or KEY
        assert stub.headers[-1]["Authorization"] == f"Bearer {used}"
        assert not [used[:size] for size in range(8, len(used)) if used[:size] in shown]
        hidden += "***" in shown
    assert hidden > 9


def test_no_key_in_what_an_endpoint_lists_and_replies(stub: Stub, parts: list[str] | None) -> None:
    stub.models = [f"model {KEY}", KEY]
    assert KEY not in shown_of(lambda: ask(stub, parts, key=KEY))
    stub.rule = lambda messages: f"Your key is {KEY}, and none other."
    assert ask(stub, parts, "stub", key=KEY).raw == "Your key is ***, and none other."
    assert ask(stub, parts, "stub", key="none").raw == f"Your key is {KEY}, and none other.", (
        "a short key may be a word"
    )


@pytest.mark.parametrize(
    "url",
    ["me:s3cr3t@host/v1", "HTTP://me:s3cr3t@host", "ftp://s3cr3t@host", "host/v1?api_key=s3cr3t"],
)
def test_no_password_in_errors_about_the_address(url: str) -> None:
    with pytest.raises(InputError, match="host") as caught:
        Endpoint(url)
    assert "s3cr3t" not in str(caught.value)


def test_an_error_of_the_caller_is_its_own(stub: Stub) -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Endpoint(stub.url).complete(ASK, max_tokens=5, on_text=closed)


FOLDER = Path(__file__).parents[1] / "golden" / "mamba2-tiny-hf"
DIALOGUE = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Where?"}]
PROMPT = "User: Be brief.\n\nWhere?\n\nAssistant:"


def test_a_reply_of_a_model_on_this_machine_continues_the_dialogue(monkeypatch):
    monkeypatch.setattr(
        "runnel.models.recurrent.language_model.load_tokenizer", lambda folder, backbone: Bytes()
    )
    local = LocalModel(FOLDER, dtype="float32", device="cpu")
    assert local.url == f"local:{FOLDER}" and local.model.startswith(f"{FOLDER}@")
    parts = []
    reply = local.complete(DIALOGUE, max_tokens=5, on_text=parts.append)
    written = local.language_model.generate(PROMPT, max_tokens=5)
    assert reply.text == written.text == "".join(parts) and reply.finish == "length"
    assert (reply.prompt_tokens, reply.completion_tokens) == (len(PROMPT), 5)
    local.language_model.tokenizer.end_id = written.ids[2]
    stopped = local.complete(DIALOGUE, max_tokens=5)
    assert (
        stopped.finish == "stop"
        and stopped.text == written.text[: written.ids.index(written.ids[2])]
    )
