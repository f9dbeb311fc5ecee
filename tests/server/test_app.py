"""Loading in the background, who may ask, errors in each route's shape, and the pages about the
server.
"""

import json
import socket
import threading
from contextlib import ExitStack
from functools import partial
from unittest.mock import Mock

import cohere
import openai
import pytest
from helpers import routes
from helpers.children import GIVE_UP_S, wait_for
from helpers.serving import serving
from helpers.texts import repeat
from helpers.tiny import tiny_model

from runnel import Embedder, Index
from runnel.errors import CheckpointError, InputError
from runnel.models.folder import load_model
from runnel.server import connections, guard
from runnel.server.app import bind, create_app, serve
from runnel.server.guard import Guard
from runnel.server.settings import ServerSettings


def test_ready_only_after_loading(tiny):
    go = threading.Event()
    with serving(tiny, name="tiny", go=go) as client:
        assert client.get("/health").json() == {"status": "ok"}
        for done in (
            client.get("/ready"),
            client.get("/info"),
            client.post("/v1/embeddings", json={"input": "a"}),
        ):
            assert done.status_code == 503 and int(done.headers["retry-after"]) >= 1
        go.set()
        while client.get("/ready").status_code == 503:
            pass
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_server():
    settings = ServerSettings(port=0)
    with pytest.raises(CheckpointError, match="no-such-model"):
        serve(create_app(settings, lambda: load_model("no-such-model")), [bind(settings)])


def test_addresses_that_cannot_be_bound_or_that_other_machines_reach_without_a_key(monkeypatch):
    with bind(ServerSettings(port=0)) as one:
        port = one.getsockname()[1]
        with pytest.raises(
            InputError, match=rf"cannot listen on 127\.0\.0\.1, port {port} \(.*in use"
        ):
            bind(ServerSettings(port=port))

    unknown = socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(socket, "create_server", Mock(side_effect=unknown))
    with pytest.raises(
        InputError, match=r"cannot listen on no-host, port 0 .*Name or service not known"
    ):
        bind(ServerSettings(host="no-host", port=0, open_bind=True))
    with pytest.raises(
        InputError,
        match=r"reachable from other machines, and no API key is set; set RUNNEL_API_KEY",
    ):
        ServerSettings(host="0.0.0.0")
    assert ServerSettings(host="0.0.0.0", api_keys=("k",)) and ServerSettings(
        host="0.0.0.0", open_bind=True
    )
    assert (
        ServerSettings(host="::1")
        and ServerSettings(host="localhost")
        and ServerSettings(host="127.0.0.2")
    )
    with pytest.raises(InputError, match="printable ASCII"):
        ServerSettings(api_keys=("schlüssel",))


EVIL = [
    "",
    *"evil.example evil.example:80 localhost.evil.example 127.0.0.1.evil.example [::1]evil.example"
    " [::1 ::1".split(),
]


def test_hosts_and_origins(tiny_server, tiny):
    for host in EVIL:
        done = tiny_server.get("/v1/models", headers={"host": host})
        assert done.status_code == 403 and "--allow-host" in done.json()["error"]["message"], host
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8675", "192.168.0.7"):
        assert tiny_server.get("/v1/models", headers={"host": host}).status_code == 200
        assert (
            tiny_server.get(
                "/v1/models", headers={"host": host, "origin": f"http://{host}"}
            ).status_code
            == 200
        )
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            done = tiny_server.get("/v1/models", headers={"host": host, "origin": origin})
            assert done.status_code == 403 and "access-control-allow-origin" not in done.headers
    with serving(tiny, name="tiny", allowed_hosts=("search.example",)) as client:
        assert client.get("/v1/models", headers={"host": "search.example"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_that_pages_of_other_sites_make_run_nothing(tiny_server, site):
    opened = tiny_server.post(
        "/page/files", params={"name": "a.txt"}, content=b"The keeper of the mill is Ada."
    )
    id = json.loads(opened.text.splitlines()[-1])["result"]["id"]
    answers = f"/page/document/answers?id={id}&q=who"
    image = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    rows = [("POST" if body else "GET", path, body) for path, (_, body) in ROUTES.items()]
    rows += [("GET", path, None) for path in (answers, "/page/about", "/health")]
    for method, path, body in rows:
        for headers in (image, link):
            done = tiny_server.request(method, path, headers=headers, json=body)
            assert done.status_code == 403, path
    for path in ("/", "/docs"):
        assert (
            tiny_server.get(path, headers=link).status_code == 200
            and tiny_server.get(path, headers=image).status_code == 403
        )
    for own in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert tiny_server.get(answers, headers=own).status_code == 200


BOTH = (
    b"POST /v1/verify HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s: %s\r\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    "second",
    [
        (b"Transfer-Encoding", b"chunked"),
        (b"transfer-encoding", b"Chunked"),
        (b"Content-Length", b"6"),
    ],
)
@pytest.mark.parametrize("length", [0, 5])
def test_a_body_with_two_ends_is_refused_counted_and_what_follows_is_not_read(
    tiny_server, second, length, caplog
):
    caplog.set_level("INFO", "runnel.server")
    with socket.create_connection(
        (tiny_server.base_url.host, tiny_server.base_url.port), GIVE_UP_S
    ) as connection:
        connection.sendall(
            BOTH % (length, *second) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b"".join(iter(partial(connection.recv, 1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()
    logged = [record.msg["status"] for record in caplog.records if record.name == "runnel.server"]
    # the parser itself refuses two numbers of bytes, before there is a request
    assert logged == ([] if second[0] == b"Content-Length" else [400])


def test_pages_and_metrics_about_the_server(tiny_server, tiny):
    """/docs works offline; every answer, also a refusal, has the headers of the policy."""
    page = tiny_server.get("/docs").text
    schema = tiny_server.get("/openapi.json").json()
    assert "<script" not in page and "://" not in page and "/openapi.json" in page
    assert all(path in page for path in schema["paths"]) and "/v1/embeddings" in schema["paths"]
    facts = tiny_server.get("/info").json()
    assert facts["model_id"] == "tiny" and facts["model_sha"] == tiny.fingerprint()
    assert (
        facts["model_type"] == {"embedding": {"pooling": "mean"}}
        and facts["max_client_batch_size"] == 10_000
    )
    assert tiny_server.get("/nothing").json()["error"]["message"].endswith("/docs lists all")
    done = tiny_server.get("/v1/embeddings")
    assert (
        done.status_code == 405
        and done.headers["allow"] == "POST"
        and done.json()["error"]["message"] == "GET is not answered at '/v1/embeddings'; send POST"
    )
    assert set(tiny_server.get("/v2/rerank").json()) == {"message"} and set(
        tiny_server.get("/embed").json()
    ) == {"error", "error_type"}
    for one in (tiny_server.get("/docs"), done, tiny_server.post("/v1/embeddings", content=b"{")):
        assert (
            one.headers["x-content-type-options"] == "nosniff"
            and one.headers["referrer-policy"] == "no-referrer"
        )
        assert (
            "default-src 'self'" in one.headers["content-security-policy"]
            and "server" not in one.headers
        )
    tiny_server.post("/v1/embeddings", json={"input": "a b c"})
    tiny_server.get("/some/path/that/a/client/chose")
    lines = tiny_server.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['runnel_requests_total{route="/v1/embeddings",status="200"}']) >= 1
    assert float(values['runnel_requests_total{route="other",status="404"}']) >= 1
    assert float(values["runnel_tokens_total"]) > 0 and float(values["runnel_queue_tokens"]) == 0
    assert "chose" not in "".join(lines)
    assert "process_resident_memory_bytes" in values


def test_bodies_have_a_limit(tiny):
    with serving(tiny, name="tiny", max_body_bytes=100_000) as client:
        large = json.dumps({"input": repeat("a", 100_000)}).encode()
        # with a length, in chunks
        for content in (
            large,
            (large[i : i + 1000] for i in range(0, len(large), 1000)),
            large * 5,
        ):
            done = client.post(
                "/v1/embeddings", content=content, headers={"content-type": "application/json"}
            )
            assert done.status_code == 413, done.text
            assert (
                done.json()["error"]["message"]
                == "the body has more than 100,000 bytes; send several requests"
            )
        assert client.post(
            "/embed", content=large, headers={"content-type": "application/json"}
        ).json()["error_type"]
        assert client.post("/v1/embeddings", json={"input": repeat("a", 90_000)}).status_code == 200
        wait_for(lambda: not held_in(client))  # forgotten just after the response is sent


def guard_of(client):
    layer = client.app.middleware_stack
    while not isinstance(layer, Guard):
        layer = layer.app
    return layer


def held_in(client):
    """The bytes of bodies in the server's memory, by client."""
    return guard_of(client)._held


def stall(client, size, key="first"):
    connection = socket.create_connection((client.base_url.host, client.base_url.port), GIVE_UP_S)
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
    connection.sendall(f"{head}Authorization: Bearer {key}\r\n\r\n".encode() + b"a" * (size - 10))
    return connection


def test_stalled_uploads_leave_room_for_small_requests_and_other_clients_and_end(tiny, monkeypatch):
    monkeypatch.setattr(guard, "_BODY_S", GIVE_UP_S)
    with serving(
        tiny, name="tiny", max_body_bytes=640_000, api_keys=("first", "second", "third")
    ) as client:

        def post(key, size):
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            return client.post(
                "/v1/verify", content=b'{"quote": "a", "text": "a"}'.ljust(size), headers=headers
            ).status_code

        stalled = []
        for key in ("first", "second"):
            stalled += [stall(client, 640_000, key) for _ in range(2)]
            wait_for(lambda key=key: held_in(client)[f"Bearer {key}"] == 1_279_980)
            assert [post(key, 20_000), post(key, 9_000)] == [429, 200]
            # then two have all room for large bodies
            assert post("third", 600_000) == (200 if key == "first" else 429)
        assert post("third", 9_000) == 200
        monkeypatch.setattr(guard, "_BODY_S", 0.2)
        stalled = [*stalled, stall(client, 9_000), stall(client, 640_000)]
        for connection in stalled[-2:]:
            # until the server closes it
            answer = b"".join(iter(partial(connection.recv, 1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 408 ") and b"bytes of the body arrived in" in answer
        for connection in stalled:
            connection.close()
        wait_for(lambda: post("first", 600_000) == 200)


def test_answers_that_a_client_does_not_read_are_bounded(tiny, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_S", GIVE_UP_S)
    size, limit = 12_000_000, 10_000_000  # two answers are more than a client may leave unread
    with serving(tiny, name="tiny", max_body_bytes=limit) as client, ExitStack() as stack:
        unread = guard_of(client)._unread
        address = (client.base_url.host, client.base_url.port)
        monkeypatch.setattr(client.app, "openapi", lambda: {"large": repeat("a", size)})
        for number in range(10):  # pipelined, too
            connection = stack.enter_context(socket.socket())
            # else the system keeps a whole answer
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.connect(address)
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            wait_for(lambda number=number: number > 1 or unread.total() > size * (number + 1))
        done = client.get("/openapi.json")
        assert done.status_code == 429 and int(done.headers["retry-after"]) >= 1
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200  # a small answer
        assert unread.total() < 2 * limit + size + 1000
        stack.close()
        wait_for(lambda: not unread)
        assert client.get("/openapi.json").json() == client.app.openapi()


ROUTES = {
    **routes.POSTS,
    "/": routes.POSTS["/embed"],
    "/v1/models": (routes.OPENAI, None),
    "/v1/models/tiny": (routes.OPENAI, None),
    "/info": (routes.TEI, None),
}
POSTS = {path: (shape, body) for path, (shape, body) in ROUTES.items() if body}


def refusals(client, routes=POSTS, headers=None):
    """Send a request to each route; return the statuses, after checking the shape of each body."""
    statuses = {}
    for path, (shape, body) in routes.items():
        done = client.request("POST" if body else "GET", path, json=body, headers=headers)
        assert set(done.json()) == shape, path
        assert done.status_code not in (429, 503) or int(done.headers["retry-after"]) >= 1
        assert done.status_code != 401 or done.headers["www-authenticate"] == "Bearer"
        statuses[path] = done.status_code
    return statuses


def test_every_route_refuses_in_the_shape_of_its_clients(tiny, tmp_path):
    Index.create(tmp_path / "index", Embedder(tiny)).close()
    tei = {path for path, (shape, _) in POSTS.items() if shape >= routes.TEI}
    with serving(tiny, name="tiny", index=tmp_path / "index", max_request_tokens=3) as client:
        assert refusals(client) == {path: 422 if path in tei else 413 for path in POSTS}
    with serving(tiny, name="tiny", index=tmp_path / "index", max_queue_tokens=10) as client:
        work = client.app.state.context.work
        work.left = 9
        assert refusals(client) == dict.fromkeys(POSTS, 429)
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as one:
            with pytest.raises(openai.RateLimitError, match=r"9 tokens .* 6 more .* 10") as error:
                one.embeddings.create(model="tiny", input="a b c d")
            assert (
                error.value.code == "rate_limit_exceeded"
                and int(error.value.response.headers["retry-after"]) >= 1
            )
        with (
            cohere.ClientV2("none", base_url=str(client.base_url)) as one,
            pytest.raises(cohere.TooManyRequestsError),
        ):
            one.rerank(
                model="tiny", query="a", documents=["b c d"], request_options={"max_retries": 0}
            )
        work.left = 0
        work.draining = True
        assert refusals(client) == dict.fromkeys(POSTS, 503)
    with serving(tiny, name="tiny", index=tmp_path / "index", deadline_s=1e-9) as client:
        assert refusals(client) == dict.fromkeys(POSTS, 504)


def test_what_the_model_has_no_head_for_is_refused(tmp_path):
    model = tiny_model(tmp_path)
    del model.heads["rerank"], model.heads["sentences"]
    with serving(model, name="tiny") as client:
        for path, status in (
            ("/v1/rerank", 400),
            ("/rerank", 422),
            ("/predict", 422),
            ("/v1/find", 400),
        ):
            done = client.post(path, json=POSTS[path][1])
            assert done.status_code == status and "tiny has no '" in done.text


def test_keys(tiny):
    with serving(tiny, name="tiny", api_keys=("first", "second")) as client:
        for header in (None, b"Bearer wrong", b"first", b"Bearer \xe4"):
            headers = {} if header is None else {"authorization": header}
            assert refusals(client, ROUTES, headers) == dict.fromkeys(ROUTES, 401)
        for key in ("first", "second"):
            assert (
                client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code
                == 200
            )
        assert [
            client.get(path).status_code for path in ("/", "/health", "/ready", "/metrics")
        ] == [200] * 4


def test_failures_are_reported_without_details(tiny_server, monkeypatch, caplog):
    # refused before they are counted
    done = tiny_server.post("/v1/find", json={"query": "q", "documents": ["a"] * 1_000_000})
    assert (
        done.status_code == 413
        and tiny_server.post("/embed", json={"inputs": ["a"] * 10_001}).status_code == 422
    )
    monkeypatch.setattr("runnel.models.embedder.Embedder.encode_rows", lambda *_: 1 / 0)
    done = tiny_server.post("/v1/embeddings", json={"input": "a"})
    assert (
        done.status_code == 500
        and done.json()["error"]["message"] == "the server failed; its log has the reason"
    )
    assert "division by zero" in caplog.text
    monkeypatch.undo()
    assert tiny_server.post("/v1/embeddings", json={"input": "a"}).status_code == 200
