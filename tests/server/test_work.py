"""The queue: limits, lanes, and requests that end early. Calls wait for events, so nothing here
depends on speed. Then many real clients at once, whose answers equal the offline ones."""

import asyncio
import gc
import math
import random
import re
import sys
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from helpers.children import GIVE_UP_S, resident_mib, server
from helpers.serving import serving

from benchmarks.serving import Load, cases, run_phase
from runnel import Document, Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import Cancelled, InputError
from runnel.models.folder import BUILT_IN, load_model
from runnel.records import probability
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings
from runnel.server.work import Work

LONG = 100_000  # characters
SOAK_S, SOAK_CLIENTS, SOAK_MIB = 60, 64, 1024
pytestmark = pytest.mark.anyio


class Client:
    """A request whose client stays until `leave`."""

    def __init__(self):
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Call:
    """A model call that reports one token per step until `go` is set, or `most` tokens."""

    def __init__(self, result=None, *, order=None, most=1 << 60):
        self.began = threading.Event()
        self.go = threading.Event()
        self.result = result
        self.ended = None
        self.order = order
        self.most, self.done = most, 0

    def __call__(self, progress):
        if self.order is not None:
            self.order.append(self.result)
        self.began.set()
        try:
            while not self.go.wait(0.001):
                self.done = min(self.done + 1, self.most)
                progress(self.done, None)
        except BaseException as error:
            self.ended = error
            raise
        return self.result


@pytest.fixture
def work(request):
    def make(**limits):
        one = Work(ServerSettings(**limits))
        request.addfinalizer(one.close)
        return one

    return make


def start(work, call, tokens=10, characters=10, client=None):
    return asyncio.create_task(work.run(client or Client(), characters, lambda _: tokens, call))


async def until(condition):
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():
            await asyncio.sleep(0.001)


async def busy(work, count=4, **options):
    """Return long calls, of which those that have one of the four threads have begun, and their
    requests.
    """
    calls = [Call(number) for number in range(count)]
    tasks = [start(work, call, characters=LONG, **options) for call in calls]
    await until(lambda: sum(call.began.is_set() for call in calls) == min(count, 4))
    return calls, tasks


async def left(*tasks):
    """Wait for requests whose clients have left."""
    for task in tasks:
        with pytest.raises(Refusal, match="the client disconnected"):
            await task


async def finish(calls, tasks):
    """Let calls end, and wait for their requests."""
    for call in calls:
        call.go.set()
    await asyncio.gather(*tasks)


def idle(work):
    return work.left == 0 and work.running == 0 and work.waiting == 0


async def test_errors_are_the_caller_s(work):
    one = work()

    def fail(*_):
        raise InputError("no")

    for count, call in ((fail, Call()), (lambda _: 1, fail)):
        with pytest.raises(InputError, match="no"):
            await one.run(Client(), 1, count, call)
        assert idle(one)


async def test_a_full_queue_says_when_to_retry(work):
    one = work(max_queue_tokens=1000)
    first = Call(most=20)
    running = start(one, first, tokens=900)
    await until(lambda: one.read == 20)
    with pytest.raises(
        Refusal, match=r"tokens are queued, and with 500 more the limit of 1,000 would be exceeded"
    ) as error:
        await start(one, Call(), tokens=500)
    assert (
        error.value.kind == "busy"
        and 0 < one.tokens_per_s <= 1000
        and int(error.value.headers["Retry-After"]) >= 1
    )
    one._recent = (100_000, 1000.0)  # 100 per second
    assert one.retry_after_s(500) == math.ceil((880 + 500 - 1000) / 100)
    second = Call("second")
    third = Call()
    for call in (first, second, third):
        call.go.set()
    done = await start(one, second, tokens=50)  # a smaller one fits
    assert done == ("second", 50)
    await running
    await start(one, third, tokens=5000)  # larger than the queue, alone
    assert idle(one)
    with pytest.raises(Refusal, match="more than 2,000,000 tokens") as error:
        await start(one, Call(), tokens=2_000_001)
    assert error.value.kind == "too_long" and idle(one)


async def test_the_deadline_ends_a_running_call(work):
    call = Call()
    deadline_s = 0.05
    # a busy machine may not have begun the call when its time is over
    while not call.began.is_set():
        one = work(deadline_s=deadline_s)
        with pytest.raises(
            Refusal, match=f"the request took longer than {deadline_s:g} s; send less text"
        ) as error:
            await start(one, call)
        assert error.value.kind == "deadline"
        await until(lambda one=one: idle(one))
        deadline_s *= 4
    assert isinstance(call.ended, Cancelled)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_client_that_leaves_frees_its_work(work, waits):
    one = work()
    others, running = await busy(one, 4 * waits)  # all threads of the lane
    client = Client()
    call = Call()
    task = start(one, call, characters=LONG, client=client)
    await until(lambda: one.waiting == 1 if waits else call.began.is_set())
    client.gone.set()
    await left(task)
    await finish(others, running)
    await until(lambda: idle(one))
    assert call.began.is_set() != waits


@pytest.mark.parametrize("counted", [False, True])
async def test_what_waits_for_a_thread_is_let_go_when_its_client_leaves(work, counted):
    """Its texts no longer count as memory then, while all threads are still busy."""
    one = work()
    go = threading.Event()
    others, running = await busy(one)
    others.append(Call())
    if not counted:  # another request is being counted
        blocked = one.run(Client(), LONG, lambda _: go.wait(GIVE_UP_S), others[-1])
        running.append(asyncio.create_task(blocked))
        await until(lambda: one.running == 5)
    client = Client()
    text = Call()
    held = weakref.ref(text)
    task = asyncio.create_task(one.run(client, LONG, lambda _, text=text: 10, text))
    del text
    await until(lambda: one.waiting == 1)
    client.gone.set()
    await asyncio.wait({task})
    assert isinstance(task.exception(), Refusal)
    del task
    gc.collect()
    assert held() is None
    go.set()
    await finish(others, running)


@pytest.mark.parametrize("characters", [10, LONG])
async def test_counts_end_with_their_requests_and_at_the_limit(work, characters):
    one = work(max_request_tokens=1000)
    limits = []
    stopped = []

    def count(job):
        tokens = 0
        try:
            while True:
                tokens += 1 if limits else 0
                job.expect_few(tokens)
                time.sleep(0.0001)
        finally:
            stopped.append(tokens)

    clients = [Client() for _ in range(8)]
    counting = [
        asyncio.create_task(one.run(client, characters, count, Call())) for client in clients
    ]
    await until(lambda: (one.running, one.waiting) == (1, 7))
    call = Call("answer")
    call.go.set()
    last = start(one, call, characters=characters)
    for client in clients:
        client.gone.set()
    assert (await last)[0] == "answer"
    await left(*counting)
    assert set(stopped) == {0}  # the others did not begin, or ended at their first check
    stopped.clear()
    limits.append(1000)
    with pytest.raises(Refusal) as error:
        await one.run(Client(), characters, count, Call())
    assert error.value.kind == "too_long" and stopped == [1001]
    await until(lambda: idle(one))


async def test_a_request_whose_client_has_left_ends_when_its_thread_does(work):
    one = work()
    client = Client()
    began = threading.Event()
    go = threading.Event()

    def count(job):
        began.set()
        return go.wait(GIVE_UP_S)

    task = asyncio.create_task(one.run(client, LONG, count, Call()))
    await until(began.is_set)
    client.gone.set()
    await asyncio.sleep(0.1)
    assert not task.done()  # its texts are in memory, and count as such until it is done
    go.set()
    await left(task)


@pytest.mark.usefixtures("parser_that_fails")
async def test_a_file_is_parsed_for_a_client_that_stays_until_the_deadline(work, tmp_path):
    (tmp_path / "busy.html").write_text("<!-- a page -->busy")
    (tmp_path / "good.html").write_text("<!-- a page -->")
    one = work()
    clients = [Client() for _ in range(3)]

    def parse(client, name):
        return asyncio.create_task(
            one.parse(client, b"", lambda reader, _: next(reader.read(tmp_path / name)).text)
        )

    parsing = [parse(client, "busy.html") for client in clients]
    await until(lambda: one.waiting == 1)
    good = parse(Client(), "good.html")
    for client in clients:
        client.gone.set()
    assert (await good).startswith("process ")
    await left(*parsing)
    await until(lambda: idle(one))
    late = work(deadline_s=0.2)
    go = threading.Event()
    waiting = [
        asyncio.create_task(late.parse(Client(), b"", lambda *_: go.wait(GIVE_UP_S)))
        for _ in range(3)
    ]
    for task in waiting:
        with pytest.raises(Refusal, match=r"longer than 0\.2 s"):
            await task
    go.set()
    await until(lambda: idle(late))


async def test_the_first_to_come_is_served_first_and_short_requests_have_their_own_threads(work):
    one = work()
    order = []
    first, running = await busy(one, tokens=0)
    calls = [Call(tokens, order=order) for tokens in (50, 60, 40, 30, 20, 10)]
    for call in calls:
        call.go.set()
        running.append(start(one, call, characters=LONG, tokens=call.result))
    # all are counted, and wait for a thread
    await until(lambda: one.left == sum(call.result for call in calls))
    short = Call("short")
    short.go.set()
    # it does not wait behind long ones
    assert (await start(one, short))[0] == "short" and one.running == 4
    first[0].go.set()
    await until(lambda: len(order) == len(calls))
    assert order == [50, 60, 40, 30, 20, 10]
    await finish(first, running)


async def test_drain_finishes_requests_and_refuses_new_ones(work):
    one = work()
    calls, running = await busy(one, 6)
    drained = asyncio.create_task(one.drain())
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="the server is stopping"):
        await start(one, Call())
    for call in calls:
        call.go.set()
    await drained
    assert [(await task)[0] for task in running] == list(range(6)) and idle(one)


async def test_drain_cancels_what_takes_too_long(work):
    one = work(drain_s=0.05)
    _, running = await busy(one, 5)
    began = threading.Event()
    go = threading.Event()

    def step(progress):  # a long one: the request is answered before it ends
        began.set()
        go.wait(GIVE_UP_S)
        progress(1, None)

    running.append(start(one, step))
    await until(began.is_set)
    drained = asyncio.create_task(one.drain())
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(
        isinstance(error, Refusal | Cancelled) and "the server is stopping" in str(error)
        for error in results
    )
    assert not drained.done()  # it waits for the thread
    go.set()
    await drained
    assert idle(one)


def test_the_measured_speed_forgets(work, monkeypatch):
    one = work()
    job = SimpleNamespace(tokens=0, read=0, expect_few=lambda tokens: None)
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    # with nothing to do it is no slow server
    for idle_s, speed, steps in ((0, 1000, 300), (0, 10, 300), (1000, 10, 1)):
        now[0] += idle_s
        one._admit(job, 0)
        for _ in range(steps):
            now[0] += 1
            one._record(job, speed)
        assert one.tokens_per_s == pytest.approx(speed, rel=0.1)


@pytest.mark.slow
def test_short_and_long_texts_together():
    model = load_model("pocket")
    load = Load(short_clients=10, long_clients=3, long_tokens=6_000, requests=4, vanishing=2)
    short, long = cases(model, load)
    with serving(model) as client:
        phase = asyncio.run(run_phase(str(client.base_url), short, long, load))
        assert len(phase.short) == 40 and len(phase.long) == 3 and phase.difference > 0
        work = client.app.state.context.work
        assert (work.left, work.running, work.waiting) == (0, 0, 0)


# by route: the list in its answer, the fields that say what a row is about, and its numbers
SOAKED = {
    "/v1/embeddings": ("data", ["index"], "embedding"),
    "/v1/find": ("sentences", ["start", "end"], "score"),
    "/v1/rerank": ("results", ["index"], "relevance_score"),
    "/v1/search": ("documents", ["id"], "score"),
}


def soak_cases(model, index):
    """Return requests, (path, body, numbers of the library by what they are about)."""
    embedder = Embedder(model)
    reranker = Reranker(model)
    retriever = SentenceRetriever(model)
    draw = random.Random(3)
    cases = []
    words = re.findall(r"[a-z]+", (BUILT_IN["pocket"] / "README.md").read_text(encoding="utf-8"))

    def text(count):
        return " ".join(draw.choices(words, k=count)) + "."

    documents = [
        " ".join(text(draw.randrange(2, 20)) for _ in range(draw.randrange(1, 6)))
        for _ in range(14)
    ]
    with Index.create(index, embedder) as built:
        built.add(Document(str(place), text) for place, text in enumerate(documents))
        for document in documents:
            query = text(4)
            texts = document.split(". ")
            asked = {"query": query, "documents": texts}
            vectors = {(place,): vector for place, vector in enumerate(embedder.encode(texts))}
            scores = {
                (place,): probability(score)
                for place, score in enumerate(reranker.score(query, texts))
            }
            sentences = {
                (one.start, one.end): one.score for one in retriever.score(query, document)
            }
            hits = {(hit.id,): hit.score for hit in built.search(query)}
            cases += [
                ("/v1/embeddings", {"input": texts}, vectors),
                ("/v1/find", {"query": query, "documents": [document], "top_k": 1000}, sentences),
                ("/v1/rerank", asked, scores),
                ("/v1/search", {"query": query}, hits),
            ]
    return cases


@pytest.mark.slow
def test_many_mixed_clients_get_the_library_s_answers_while_freed_memory_is_overwritten(tmp_path):
    """One arena of glibc for all threads, and freed memory filled with bytes: a kernel that reads
    it gives other numbers.
    """
    model = load_model("pocket", arrays=True)
    mixed = soak_cases(model, tmp_path / "index")
    problems = []
    answers = Counter()
    allocator = {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165"}
    with server("--in", tmp_path / "index", cwd=tmp_path, **allocator) as (process, client):
        until_s = time.monotonic() + SOAK_S

        def ask(seed):
            draw = random.Random(seed)
            with httpx.Client(base_url=client.base_url, timeout=GIVE_UP_S, trust_env=False) as own:
                while time.monotonic() < until_s and not problems:
                    path, body, wanted = draw.choice(mixed)
                    done = own.post(path, json=body)
                    if done.status_code != 200:
                        problems.append((path, done.status_code, done.text[:300]))
                        return
                    rows, about, numbers = SOAKED[path]
                    got = {
                        tuple(row[name] for name in about): row[numbers]
                        for row in done.json()[rows]
                    }
                    differences = [
                        np.abs(np.subtract(got.get(place, math.inf), wanted[place])).max()
                        for place in wanted
                    ]
                    if len(got) != len(wanted) or max(differences) > 0:
                        problems.append((path, max(differences), got, wanted))
                    answers[path] += 1

        with ThreadPoolExecutor(SOAK_CLIENTS) as clients:
            list(clients.map(ask, range(SOAK_CLIENTS)))
        assert not problems and len(answers) == 4
        assert process.poll() is None and client.get("/ready").status_code == 200
        if sys.platform == "linux":
            assert resident_mib(process.pid) < SOAK_MIB
