"""Clients that send headers slowly, do not read, or open too many connections, and what the others
get meanwhile.
"""

import asyncio
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from helpers.children import GIVE_UP_S, resident_mib, server, wait_for

from runnel.server import connections
from runnel.server.connections import (
    LimitedServer,
    client_of,
    most_connections,
    with_unambiguous_bodies,
)

HALF = b"GET / HTTP/1.1\r\nHost: a\r\nX-Half: "
WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 64 << 20  # more than the system keeps of an answer that is not read


class App:
    """Answer /large with many bytes, /wait when `go` is set, others at once;
    the body is not read.
    """

    def __init__(self):
        self.go = threading.Event()
        self.began = 0
        self.left = 0

    async def __call__(self, scope, receive, send):
        self.began += 1
        while scope["path"] == "/wait" and not self.go.is_set():
            await asyncio.sleep(0.01)
        body = bytes(LARGE) if scope["path"] == "/large" else b"hello"
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})
        self.left += 1


@contextmanager
def limited():
    """Yield an application and a function that connects to it and sends; its server has the limits
    of `connections`.
    """
    app = App()
    opened = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        served = LimitedServer(
            with_unambiguous_bodies(app), lifespan="off", timeout_graceful_shutdown=1
        )
        thread = threading.Thread(target=served.run, args=([listening],))
        thread.start()

        def connect(data=b"", address="127.0.0.1"):
            one = socket.create_connection(
                listening.getsockname(), GIVE_UP_S, source_address=(address, 0)
            )
            opened.append(one)
            one.sendall(data)
            return one

        try:
            wait_for(lambda: served.started)
            app.connections = served.server_state.connections
            yield app, connect
        finally:
            for one in opened:
                one.close()
            served.should_exit = True
            thread.join(GIVE_UP_S)
        assert not thread.is_alive()


def answered(connection):
    """Return whether the server answers; False if it closes the connection."""
    answer = b""
    with suppress(ConnectionError):
        while not answer.endswith(b"hello") and (data := connection.recv(1 << 16)):
            answer += data
    return answer.startswith(b"HTTP/1.1 200 OK")


def is_open(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(GIVE_UP_S)


def dribble(connection, pause_s=0.02):
    """Send a header byte by byte until the server closes the connection; return whether it did."""
    for _ in range(int(GIVE_UP_S / pause_s)):
        time.sleep(pause_s)
        try:
            connection.sendall(b"a")
        except ConnectionError:
            return True
        if not is_open(connection):
            return True
    return False


def test_a_body_with_two_ends_is_refused_before_an_application_without_checks():
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with limited() as (app, connect):
        connection = connect(head + b"0\r\n\r\n" + WHOLE)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower() and not app.began


@pytest.mark.parametrize(
    "first",
    [
        b"",
        HALF,
        WHOLE,
        WHOLE + HALF,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n",
    ],
)
def test_headers_have_a_time_that_more_bytes_do_not_extend(monkeypatch, first):
    monkeypatch.setattr(connections, "HEADERS_S", 1.0)
    with limited() as (app, connect):
        connection = connect(first)
        if b"\r\n\r\n" in first:  # the answer; what follows it has a time of its own
            assert answered(connection)
        assert dribble(connection)
        wait_for(lambda: not app.connections)
        assert answered(connect(WHOLE))


def test_a_complete_request_has_no_time_for_headers_and_the_connection_serves_the_next(monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_S", 1.0)
    with limited() as (app, connect):
        connection = connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(1.5)
        app.go.set()
        for _ in range(3):
            assert answered(connection)
            time.sleep(1.2)  # idle: longer than headers may take
            connection.sendall(WHOLE[:9])
            connection.sendall(WHOLE[9:])
        assert answered(connection)


def test_idle_connections_end(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    with limited() as (app, connect):
        connection = connect(WHOLE)
        assert answered(connection)
        wait_for(lambda: not app.connections)


def test_headers_that_are_too_large_are_refused():
    with limited() as (_, connect):
        assert connect(HALF + b"a" * (1 << 17)).recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    "data", [b"", HALF, WHOLE, b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc"]
)
def test_a_client_with_too_many_connections_loses_its_oldest_that_waits(monkeypatch, data):
    monkeypatch.setattr(connections, "MOST_OF_CLIENT", 5)
    with limited() as (app, connect):
        busy = connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_for(lambda: app.began)
        many = [connect(data) for _ in range(100)]
        # another program on the same machine
        assert all(answered(connect(WHOLE)) for _ in range(3))
        wait_for(lambda: not any(map(is_open, many[:90])))
        assert len(app.connections) <= 5
        app.go.set()
        assert answered(busy)


def test_only_a_client_whose_connections_are_all_answered_is_refused(monkeypatch):
    monkeypatch.setattr(connections, "MOST_OF_CLIENT", 5)
    with limited() as (app, connect):
        busy = [connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(5)]
        wait_for(lambda: app.began == 5)
        for _ in range(3):
            refused = connect()
            wait_for(lambda refused=refused: not is_open(refused))
        app.go.set()
        assert all(map(answered, busy)) and answered(connect(WHOLE))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_of_all_clients_the_one_with_most_connections_makes_room(monkeypatch):
    monkeypatch.setattr(connections, "most_connections", lambda: 12)
    with limited() as (app, connect):
        few = connect(HALF, "127.0.0.2")
        many = [connect(HALF, f"127.0.0.{3 + number % 2}") for number in range(60)]
        assert answered(connect(WHOLE, "127.0.0.5"))
        wait_for(lambda: not any(map(is_open, many[:40])))
        assert is_open(few) and len(app.connections) <= 12


@pytest.mark.parametrize("requests", [b"/large", b"/large /large /large", b"/ /large /"])
def test_an_answer_that_is_not_read_ends(monkeypatch, requests):
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)
    with limited() as (app, connect):
        connection = connect(
            b"".join(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in requests.split())
        )
        wait_for(lambda: app.began and not app.connections)
        wait_for(lambda: app.began == app.left)  # nothing holds the answer any more
        with pytest.raises(ConnectionError):
            while connection.recv(1 << 20):
                pass
            raise ConnectionResetError


def test_an_answer_that_is_read_slowly_arrives(monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    with limited() as (_, connect):
        connection = connect(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        read = 0
        while data := connection.recv(1 << 22):
            read += len(data)
            time.sleep(0.02)
        assert read > LARGE


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True), ("10.0.0.1", "10.0.0.2", False), ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True), ("2001:db8::1", "2001:db8:0:1::1", False), ("fe80::1%lo", "fe80::2%lo", True),
        ("", "", True), ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)  # fmt: skip
def test_a_client_is_an_address_or_a_network_of_64_bits(one, other, same):
    assert (client_of(one) == client_of(other)) is same


def test_half_of_the_files_are_left_for_other_things(monkeypatch):
    resource = pytest.importorskip("resource")
    for files, most in ((100, 50), (1024, 512), (1 << 20, 1024), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(resource, "getrlimit", Mock(return_value=(files, files)))
        assert most_connections() == most


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is set")
@pytest.mark.parametrize(
    "data",
    [b"", HALF, b"POST /v1/find HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"],
)
def test_two_thousand_half_sent_requests_leave_the_server_to_others(tmp_path, data):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server(cwd=tmp_path) as (process, client), ExitStack() as stack:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        find = {
            "query": "who keeps the mill",
            "documents": ["The museum opens at nine. The keeper of the mill is Ada."],
        }
        before = client.post("/v1/find", json=find).json()
        memory = resident_mib(process.pid)
        address = (client.base_url.host, client.base_url.port)
        for _ in range(2_000):
            stack.enter_context(socket.create_connection(address, GIVE_UP_S)).sendall(data)
        began = time.monotonic()
        with httpx.Client(base_url=client.base_url, timeout=GIVE_UP_S, trust_env=False) as other:
            assert other.get("/health").status_code == 200
            assert other.post("/v1/find", json=find).json() == before
        assert time.monotonic() - began < connections.HEADERS_S  # which ends what is half sent
        assert resident_mib(process.pid) < memory + 50
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 600
        assert not [line for line in process.lines if "resource" in line]
