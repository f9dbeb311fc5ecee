"""A local endpoint with OpenAI's chat interface that answers by rule, and misbehaves on order."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Stub:
    """What the endpoint answers, and what it was asked.

    Attributes:
        rule: returns the reply to a list of messages.
        faults: what to do wrong with the next requests, one each: a status, "malformed", "no text", "truncated", "cut" or "slow".
        asked: the bodies of all requests.
    """

    def __init__(self, rule: Callable[[list[dict[str, str]]], str]) -> None:
        self.rule = rule
        self.faults: deque[int | str] = deque()
        self.asked: list[dict[str, Any]] = []
        self.models = ["stub"]
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    stub: Stub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": name, "object": "model"} for name in self.stub.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.stub.asked.append(body)
        fault = self.stub.faults.popleft() if self.stub.faults else None
        if isinstance(fault, int):
            self._send({"error": {"message": f"fault {fault}"}}, fault, {"retry-after-ms": "10"})
        elif fault == "malformed":
            self._raw(b'{"choices": [{"mess')
        elif fault == "no text":
            self._send({"id": "1", "object": "chat.completion", "created": 1, "model": "stub", "choices": []})
        else:
            if fault == "slow":
                time.sleep(1.0)
            self._answer(self.stub.rule(body["messages"]), bool(body.get("stream")), fault)

    def _answer(self, text: str, stream: bool, fault: object) -> None:
        finish = "length" if fault == "cut" else "stop"
        usage = {"prompt_tokens": 7, "completion_tokens": len(text.split()), "total_tokens": 7 + len(text.split())}
        head = {"id": "1", "created": 1, "model": "stub"}
        if not stream:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            self._send(head | {"object": "chat.completion", "choices": [choice], "usage": usage})
            return
        chunks = [text[at : at + 3] for at in range(0, len(text), 3)]
        events: list[dict[str, Any]] = [{"index": 0, "delta": {"content": one}, "finish_reason": None} for one in chunks]
        if fault == "truncated":
            events = events[: len(events) // 2]
        else:
            events.append({"index": 0, "delta": {}, "finish_reason": finish})
        lines = [head | {"object": "chat.completion.chunk", "choices": [event]} for event in events]
        if fault != "truncated":
            lines.append(head | {"object": "chat.completion.chunk", "choices": [], "usage": usage})
        body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
        self._raw((body + ("" if fault == "truncated" else "data: [DONE]\n\n")).encode(), kind="text/event-stream")

    def _send(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._raw(json.dumps(value).encode(), status, headers)

    def _raw(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None, kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(BrokenPipeError):  # a client that waits no longer
            self.wfile.write(body)


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
