"""`runnel serve`: a process that serves until SIGTERM, its settings and its logs."""

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers.children import GIVE_UP_S, server

pytestmark = pytest.mark.slow


def test_serve(tmp_path):
    (tmp_path / "keys").write_text("alpha\n\nbeta\n")
    with server("--log-json", "--api-key-file", "keys", cwd=tmp_path, RUNNEL_API_KEY="gamma") as (
        process,
        client,
    ):
        for key in ("alpha", "beta", "gamma"):
            done = client.post(
                "/v1/embeddings", json={"input": "a"}, headers={"authorization": f"Bearer {key}"}
            )
            assert done.status_code == 200 and done.json()["model"] == "pocket"
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 401
    records = [
        one
        for one in map(json.loads, filter(lambda line: line.startswith("{"), process.lines))
        if "status" in one
    ]
    assert [one["status"] for one in records] == [200, 200, 200, 401]
    assert records[0] | {"time": 0, "seconds": 0} == {
        "time": 0,
        "level": "info",
        "logger": "runnel.server",
        "method": "POST",
        "path": "/v1/embeddings",
        "status": 200,
        "seconds": 0,
        "tokens": 3,
    }
    assert not any(key in line for line in process.lines for key in ("alpha", "beta", "gamma"))


def test_only_two_lines_on_stderr_and_a_second_signal_ends_requests(tmp_path):
    with (
        server("--json", cwd=tmp_path, stdout=subprocess.PIPE) as (process, client),
        ThreadPoolExecutor(1) as pool,
    ):
        assert json.loads(process.stdout.buffer.read1()) == {
            "model": "pocket",
            "url": str(client.base_url).rstrip("/"),
        }
        assert process.lines[0] == "runnel: loading pocket\n" and len(process.lines) == 2
        answer = pool.submit(
            client.post, "/v1/embeddings", json={"input": "The river runs. " * 50_000}
        )
        while (
            "runnel_requests_running 1.0"
            not in httpx.get(f"{client.base_url}/metrics", trust_env=False).text
        ):
            assert not answer.done()
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{client.base_url}/ready", trust_env=False).status_code != 503:
            pass
        process.send_signal(signal.SIGTERM)
        assert answer.result(GIVE_UP_S).status_code == 503
        assert process.wait(GIVE_UP_S) == 0


def test_the_index_of_the_project_is_the_default(run, tmp_path, monkeypatch):
    """Unless it is of another model, which the user may not have thought of."""
    apps = []
    monkeypatch.setattr("runnel.server.app.serve", lambda app, *_: apps.append(app))
    (tmp_path / "a.txt").write_text("A tuple cannot be changed.")
    (tmp_path / "below").mkdir()
    assert run("serve", "--port", 0).err == "runnel: loading pocket\n"
    assert run("index").code == 0
    monkeypatch.chdir(tmp_path / "below")
    assert f"searching the index of {tmp_path}" in run("serve", "--port", 0).err
    assert (
        f"the index of {tmp_path} is not searched"
        in run("serve", "--port", 0, "-m", "pocket-mamba2").err
    )
    assert run("serve", "--port", 0, "--in", tmp_path / "x").err == "runnel: loading pocket\n"
    places = [None, str(tmp_path / ".runnel" / "index"), None, str(tmp_path / "x")]
    assert [app.state.context.settings.index for app in apps] == places
