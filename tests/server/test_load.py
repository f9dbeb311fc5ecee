"""Many clients at once: every answer equals the offline one, clients that leave free their work, a stop loses no answer."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import httpx
import pytest
from helpers.children import PATHS
from helpers.serving import serving
from helpers.waiting import GIVE_UP_S

from benchmarks.serving import Case, Load, cases, measure, run_phase, server, vanish
from runnel.models.base import load_model

pytestmark = pytest.mark.slow

SMALL = Load(short_clients=10, long_clients=3, long_tokens=6_000, requests=4, vanishing=2)


@pytest.fixture(scope="module")
def model():
    return load_model("pocket")


def test_short_and_long_texts_together(model):
    short, long = cases(model, SMALL)
    with serving(model) as client:
        phase = asyncio.run(run_phase(str(client.base_url), short, long, SMALL))
        assert len(phase.short) == 40 and len(phase.long) == 3 and phase.difference > 0
        work = client.app.state.context.work
        assert (work.left, work.running, work.waiting) == (0, 0, 0)


def test_clients_that_leave_free_their_work(model):
    load = Load(long_tokens=150_000, vanishing=2)
    text = "The river runs through the valley. " * (load.long_tokens // 7)
    with serving(model) as client:
        long = [Case("/v1/find", {"query": "rivers", "documents": [text]}, lambda _: 0.0)]
        seconds = asyncio.run(vanish(str(client.base_url), long, load))
        assert seconds < 60
        assert client.app.state.context.work.read < load.vanishing * load.long_tokens
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def start(port):
    command = [sys.executable, "-m", "runnel", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | PATHS, stderr=subprocess.PIPE, text=True)
    return process


def ended(process):
    _, log = process.communicate(timeout=GIVE_UP_S)
    assert process.returncode == 0 and log.count("\n") == 2, log  # loading, serving


class Retrying(threading.Thread):
    """A client that sends a request until it is answered; `refusals` has what it got before."""

    def __init__(self, port, case):
        super().__init__(daemon=True)
        self.url, self.case, self.difference, self.refusals = f"http://127.0.0.1:{port}{case.path}", case, None, []
        self.start()

    def run(self):
        with httpx.Client(timeout=GIVE_UP_S, trust_env=False, verify=False) as client:
            while self.difference is None:
                try:
                    done = client.post(self.url, json=self.case.body)
                except httpx.TransportError as error:
                    self.refusals.append(type(error))
                else:
                    if done.status_code == 200:
                        self.difference = self.case.difference(done.json())
                        return
                    self.refusals.append(done.status_code)
                time.sleep(0.5)


def test_a_restart_under_load_loses_only_what_was_not_answered(model):
    """Requests that the server has when it is stopped are answered; later ones are refused until the next server is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    short, long = cases(model, Load(long_tokens=8_000))
    process = start(port)
    url = f"http://127.0.0.1:{port}"
    try:
        first = Retrying(port, short[0])  # retries until the model is loaded
        first.join()
        assert set(first.refusals) <= {503, httpx.ConnectError}
        held = [Retrying(port, case) for case in long]
        with httpx.Client(base_url=url, trust_env=False) as client:
            while "runnel_requests_running 2.0" not in client.get("/metrics").text:
                assert all(one.is_alive() for one in held)
            process.send_signal(signal.SIGTERM)
            with suppress(httpx.TransportError):  # it has ended
                while client.get("/ready").status_code != 503:
                    pass
                assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 503
        later = [Retrying(port, case) for case in short[:4]]
        ended(process)
        process = start(port)
        for one in (*held, *later):
            one.join(GIVE_UP_S)
        assert [one.refusals for one in held] == [[], []]
        assert all(one.refusals for one in later)
        assert max(one.difference for one in (*held, *later)) < 2e-3
        process.send_signal(signal.SIGTERM)
        ended(process)
    finally:
        process.kill()
        process.wait()


@pytest.mark.release
def test_64_clients_with_texts_of_20_and_200000_tokens(model):
    with server("pocket") as url:
        assert "| the same again | 1,120 |" in asyncio.run(measure(url, model, Load(), print))
