"""Messages of JSON-RPC as they are, without a client of the SDK: progress, cancellation, sessions,
and servers that share a project.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest
from helpers.children import GIVE_UP_S, PATHS, PROGRAMS

from runnel.agents.server import _TOGETHER

pytestmark = pytest.mark.slow
ENVIRONMENT = os.environ | PATHS | {"OMP_NUM_THREADS": "1"}
ACCEPT = {"Accept": "application/json, text/event-stream"}
CANCELLED = -32800  # how the SDK ends the stream of a call that was cancelled, which HTTP needs


class OverStdio:
    """A client that writes lines and keeps all messages of the server."""

    def __init__(self, command, cwd):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, env=ENVIRONMENT, cwd=cwd)
        self.messages = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.messages.put(json.loads(line))

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(GIVE_UP_S)
        self.reader.join()
        errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert code == 0 and b"Traceback" not in errors


class OverHttp:
    """The same by POST, each answer in a thread of its own."""

    def __init__(self, command, cwd):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=cwd
        )
        self.url = self.process.stdout.readline().strip()
        self.client = httpx.Client(headers=ACCEPT, timeout=GIVE_UP_S, trust_env=False)
        self.messages = queue.Queue()
        self.readers = []

    def send(self, message):
        if "id" not in message:
            done = self.client.post(self.url, json={"jsonrpc": "2.0"} | message)
            assert (done.status_code, done.text) == (202, "")
            return
        self.readers.append(threading.Thread(target=self.read, args=(message,)))
        self.readers[-1].start()

    def read(self, message):
        body = {"jsonrpc": "2.0"} | message
        with self.client.stream("POST", self.url, json=body) as answer:
            if session := answer.headers.get("mcp-session-id"):
                self.client.headers["mcp-session-id"] = session
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    self.messages.put(json.loads(line.removeprefix("data:")))

    def close(self):
        for reader in self.readers:
            reader.join()
        self.client.close()
        self.process.terminate()
        assert self.process.wait(GIVE_UP_S) == 0
        self.process.stdout.close()


@contextmanager
def connected(kind, command, cwd):
    client = kind(command, cwd)
    try:
        facts = {"clientInfo": {"name": "test", "version": "0"}, "capabilities": {}}
        version = {"protocolVersion": "2025-06-18"}
        client.send({"id": 0, "method": "initialize", "params": version | facts})
        assert receive(client)["result"]["protocolVersion"] == "2025-06-18"
        client.send({"method": "notifications/initialized"})
        yield client
    finally:
        client.close()


def receive(client):
    return client.messages.get(timeout=GIVE_UP_S)


def answer_to(client, id):
    """Return the answer to a call, and the messages before it."""
    before = []
    while (message := receive(client)).get("id") != id:
        before.append(message)
    return message, before


def call(client, id, tool, token=None, **arguments):
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    params = {"name": tool, "arguments": arguments} | meta
    client.send({"id": id, "method": "tools/call", "params": params})


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a.md").write_text("# Dogs\n\nThe dog barked all night.\n")
    return tmp_path


@pytest.fixture(params=[OverStdio, OverHttp])
def client(root, request):
    kind = "stdio" if request.param is OverStdio else "http"
    command = [sys.executable, str(PROGRAMS / "slow_agents.py"), kind, str(root)]
    with connected(request.param, command, root) as one:
        yield one


def test_progress_and_cancellation(client):
    """More calls in turn than run at once: each that was cancelled has left its place."""
    after = []
    for number in range(_TOGETHER + 2):
        id = f"long {number}"
        token = number if number % 2 else f"token {number}"
        call(client, id, "find", token, query="dog", file="a.md")
        seen = [receive(client) for _ in range(2)]
        assert [one["method"] for one in seen] == ["notifications/progress"] * 2
        facts = [one["params"] for one in seen]
        assert [one["progressToken"] for one in facts] == [token, token]
        assert 0 < facts[0]["progress"] < facts[1]["progress"] <= facts[1]["total"]
        client.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        call(client, number, "read", file="a.md")
        answer, before = answer_to(client, number)
        assert "barked" in answer["result"]["content"][0]["text"]
        after += before
    for wrong in ("absent", number, 3.5, None, [1]):
        client.send({"method": "notifications/cancelled", "params": {"requestId": wrong}})
    client.send({"id": "last", "method": "ping"})
    answer, before = answer_to(client, "last")
    assert answer["result"] == {}
    ends = [one for one in after + before if "id" in one]
    assert all("result" not in one and one["error"]["code"] == CANCELLED for one in ends)
    assert not ends or isinstance(client, OverHttp)


def test_a_call_without_a_token_sends_no_progress(client):
    call(client, "long", "find", query="dog", file="a.md")
    for id in range(3):
        call(client, id, "read", file="a.md")
        assert answer_to(client, id)[1] == []
    client.send({"method": "notifications/cancelled", "params": {"requestId": "long"}})
    call(client, 4, "read", file="a.md")
    answer, before = answer_to(client, 4)
    assert "result" in answer and [one["id"] for one in before] in ([], ["long"])


def test_calls_of_http_clients_that_left_stop_and_sessions_are_apart(root):
    command = [sys.executable, str(PROGRAMS / "slow_agents.py"), "http", str(root)]
    with connected(OverHttp, command, root) as client:
        find = {"name": "find", "arguments": {"query": "dog", "file": "a.md"}}
        find |= {"_meta": {"progressToken": 1}}
        message = {"jsonrpc": "2.0", "method": "tools/call", "params": find}
        for id in range(_TOGETHER + 2):
            with client.client.stream("POST", client.url, json=message | {"id": id}) as answer:
                assert '"progress"' in next(one for one in answer.iter_lines() if "data" in one)
        # the same id in another session: the call here goes on
        call(client, "long", "find", 1, query="dog", file="a.md")
        receive(client)
        cancel = {"method": "notifications/cancelled", "params": {"requestId": "long"}}
        other = {"jsonrpc": "2.0"} | cancel
        plain = {"headers": ACCEPT, "json": other, "trust_env": False}
        assert httpx.post(client.url, **plain).status_code == 400
        stale = plain | {"headers": ACCEPT | {"mcp-session-id": "absent"}}
        assert httpx.post(client.url, **stale).status_code == 404
        progress = [receive(client) for _ in range(3)]
        assert all(one["method"] == "notifications/progress" for one in progress)
        client.send(cancel)
        while (last := receive(client)).get("id") != "long":
            pass
        assert last["error"]["code"] == CANCELLED


def test_servers_and_a_command_share_a_project(tmp_path):
    """All bring its index up to date at once: each answers, and the index has everything."""

    def write(name):
        for number in range(4):
            text = f"The keeper of mill {number} is {name}. The museum opens at nine. " * 3
            (tmp_path / f"{number}.txt").write_text(text)

    write("Ada")
    index = [sys.executable, "-m", "runnel", "index", "."]
    output = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    assert subprocess.run(index, **output, check=False).returncode == 0
    command = [sys.executable, "-m", "runnel", "mcp"]
    with (
        connected(OverStdio, command, tmp_path) as one,
        connected(OverStdio, command, tmp_path) as two,
    ):
        for round, name in enumerate(("Eve", "Bob")):
            write(name)
            for client in (one, two):
                call(client, round, "search", query="who keeps the mill", structured=True)
            subprocess.run(index, **output, check=False)
            for client in (one, two):
                found = answer_to(client, round)[0]["result"]
                assert not found.get("isError") and found["structuredContent"]["documents"]
                for note in found["structuredContent"]["notes"]:
                    assert "written by" in note and "index as it was before" in note
        for client in (one, two):
            call(client, "last", "search", query="who keeps the mill", structured=True)
            found = answer_to(client, "last")[0]["result"]["structuredContent"]
            texts = [each["text"] for one in found["documents"] for each in one["sentences"]]
            assert found["notes"] == [] and any("Bob" in text for text in texts)
            assert not any("Ada" in text or "Eve" in text for text in texts)
    done = subprocess.run(index, **output, check=False)
    assert done.returncode == 0 and "4 unchanged" in done.stdout + done.stderr
