"""A pytest plugin: a local endpoint with OpenAI's chat interface that answers by rule, and
misbehaves on order.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from helpers.texts import repeat

JSON = "application/json"
HEAD = {"id": "1", "created": 1, "model": "stub"}
WORD = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
ENDLESS = {
    "words": f"data: {json.dumps(HEAD | WORD)}\n\n".encode(),
    "line": b"data: " + b"x" * 9999,
    "comments": b": ping\n\n",
}


def usage_of(text: str) -> dict[str, int]:
    return {
        "prompt_tokens": 7,
        "completion_tokens": len(text.split()),
        "total_tokens": 7 + len(text.split()),
    }


def completion(text: str, finish: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    return HEAD | {"object": "chat.completion", "choices": [choice], "usage": usage_of(text)}


class Stub:
    """What the endpoint answers, and what it was asked.

    Attributes:
        rule: returns the reply to a list of messages.
        faults: what to do wrong with the next requests, one each: a status, "malformed", "no text",
            "truncated", "cut", "slow", "not streamed", "other texts" (its vectors are numbered for
            others), "moved" (to another host name), "repeats"
            (its error has the request's address and key), "moved with it" (to an address with them)
            or a kind of `ENDLESS` answer.
        padding: characters before what it repeats.
        vector: returns the vector of a text.
        loading: how often it does not list its models yet.
        asked, headers: the bodies and the headers of all requests.
    """

    def __init__(self, rule: Callable[[list[dict[str, str]]], str]) -> None:
        self.rule = rule
        self.faults: deque[int | str] = deque()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Message] = []
        self.loading = self.padding = 0
        self.vector: Callable[[str], list[float]] = lambda text: []
        self.models = ["stub"]
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    stub: Stub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.endswith("/models") and self.stub.loading:
            self.stub.loading -= 1
            self._send({"error": {"message": "loading"}}, 503, {"retry-after-ms": "10"})
            return
        self._send(
            {
                "object": "list",
                "data": [{"id": name, "object": "model"} for name in self.stub.models],
            }
        )

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.partition("?")[0].endswith(("/chat/completions", "/embeddings")):
            self._send({"error": {"message": "no such route"}}, 404)
            return
        body = json.loads(sent)
        self.stub.asked.append(body)
        self.stub.headers.append(self.headers)
        padding = repeat("x", self.stub.padding)
        repeated = f"{self.path} Authorization: {self.headers['Authorization']}"
        fault = self.stub.faults.popleft() if self.stub.faults else None
        if isinstance(fault, int):
            self._send({"error": {"message": f"fault {fault}"}}, fault, {"retry-after-ms": "10"})
        elif fault == "malformed":
            self._raw(b'{"choices": [{"mess')
        elif fault == "moved":
            self._raw(
                b"",
                307,
                {"Location": self.stub.url.replace("127.0.0.1", "localhost") + "/chat/completions"},
            )
        elif fault == "repeats":
            self._send(
                {"error": {"message": f"{padding} {repeated}, and again {repeated}"}},
                401,
            )
        elif fault == "moved with it":
            self._raw(
                b"",
                307,
                {"Location": f"http://localhost/{padding}/{repeated.replace(' ', '/')}"},
            )
        elif fault in ENDLESS:
            self._pour(ENDLESS[fault], pause_s=0.02 if fault == "comments" else 0.0)
        elif fault == "no text":
            self._send(HEAD | {"object": "chat.completion", "choices": []})
        elif "input" in body:
            first = 1 if fault == "other texts" else 0
            rows = [
                {"index": index, "embedding": self.stub.vector(text)}
                for index, text in enumerate(body["input"], first)
            ]
            self._send(HEAD | {"object": "list", "data": rows[::-1]})  # their order means nothing
        else:
            if fault == "slow":
                time.sleep(1)
            self._answer(self.stub.rule(body["messages"]), bool(body.get("stream")), fault)

    def _answer(self, text: str, stream: bool, fault: object) -> None:
        finish = "length" if fault == "cut" else "stop"
        if not stream or fault == "not streamed":
            whole = json.dumps(completion(text, finish)).encode()
            self._raw(whole, kept=len(whole) // 2 if fault == "truncated" else None)
            return
        chunks = [
            {"delta": {"content": text[at : at + 3]}, "finish_reason": None}
            for at in range(0, len(text), 3)
        ]
        events: list[dict[str, Any]] = [{"choices": [{"index": 0} | chunk]} for chunk in chunks]
        if fault == "truncated":
            events = events[: len(events) // 2]
        else:
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            events.append({"choices": [], "usage": usage_of(text)})
        lines = [json.dumps(HEAD | {"object": "chat.completion.chunk"} | event) for event in events]
        lines += [] if fault == "truncated" else ["[DONE]"]
        self._raw("".join(f"data: {line}\n\n" for line in lines).encode(), kind="text/event-stream")

    def _send(
        self, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._raw(json.dumps(value).encode(), status, headers)

    def _raw(
        self,
        body: bytes,
        status: int = 200,
        headers: Any = None,
        kind: str = JSON,
        kept: int | None = None,
    ) -> None:
        """Send an answer; with `kept`, the connection ends after this number of bytes."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(BrokenPipeError):  # a client that waits no longer
            self.wfile.write(body[:kept])

    def _pour(self, part: bytes, pause_s: float) -> None:
        """Send an answer that does not end before the client leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(part)
                time.sleep(pause_s)


@contextmanager
def serve(rule: Callable[[list[dict[str, str]]], str]) -> Iterator[Stub]:
    stub = Stub(rule)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfStub", (Handler,), {"stub": stub}))
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def stub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The endpoint of commands, which answers by the `rule` of the test's module."""
    with serve(request.module.rule) as one:
        monkeypatch.setenv("OPENAI_BASE_URL", one.url)
        yield one
