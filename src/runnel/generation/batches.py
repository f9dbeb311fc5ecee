"""Requests in batches: an endpoint answers many together, within a day and at a lower price (OpenAI's batch interface).

Work with language models runs in rounds. In each round a `Replies` with a `batch_size` uses the replies that it has and collects
the requests that it has not; these are sent as one batch, whose results are stored; the next round gets further. The last round
finds all of its replies. What is under way is recorded in the store before it is sent, with a mark that the endpoint keeps, so
that after a crash at any moment the batch is found again and not paid for twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from secrets import token_hex
from typing import Any, Literal

from runnel.errors import EndpointError, InputError, counted
from runnel.generation.endpoint import Endpoint, Reply, reply_of
from runnel.generation.replies import BatchedRequest, Replies, Usage

BATCH_SIZE = 50_000  # OpenAI's limit
POLL_S = 30.0  # between two looks at a batch
_PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_LISTED = 1000  # batches of the endpoint to look through for one of ours
_TABLES = (
    "CREATE TABLE IF NOT EXISTS batches (mark TEXT PRIMARY KEY, url TEXT NOT NULL, id TEXT)",
    "CREATE TABLE IF NOT EXISTS batched "
    "(key BLOB PRIMARY KEY, mark TEXT NOT NULL, version TEXT NOT NULL, expected TEXT NOT NULL)",
)


@dataclass
class Batches:
    """Batches of a store of replies.

    Args:
        replies: an open store; without a `batch_size` requests are sent one by one, in one round.
        endpoints: all that are asked; models on this machine have no batches.
        report: called with a line of text when a batch is sent and when its state changes.
    """

    replies: Replies
    endpoints: Sequence[Endpoint]
    report: Callable[[str], None]

    def rounds(self) -> Iterator[int]:
        """Yield the number of each round of work, from 0. After the last one, no request waits.

        Raises:
            EndpointError: the endpoint refuses a batch, or a batch ended without any reply.
            InputError: a batch of an earlier run is under way, at another endpoint, or now requests are to be sent one by one.
        """
        for table in _TABLES:
            self.replies.file.execute(table)
        self._finish_all()
        number = 0
        yield number
        while self.replies.waiting:
            self._send(self.replies.take_waiting())
            self._finish_all()
            number += 1
            yield number

    def _send(self, waiting: Mapping[bytes, BatchedRequest]) -> None:
        for endpoint in dict.fromkeys(self.endpoints):
            requests = {key: one for key, one in waiting.items() if one.endpoint is endpoint}
            if not requests:
                continue
            file = upload(endpoint, requests, self.replies.temperature)
            mark = token_hex(8)
            rows = [(key, mark, one.version, json.dumps(asdict(one.expected))) for key, one in requests.items()]
            with self.replies.file as store:
                store.execute("INSERT INTO batches VALUES (?, ?, NULL)", [mark, endpoint.url])
                store.executemany("INSERT INTO batched VALUES (?, ?, ?, ?)", rows)
            try:
                name = create(endpoint, file, mark)
            except EndpointError as error:
                if hasattr(error.__cause__, "status_code"):  # refused; without an answer it may have been created
                    self._forget(mark)
                raise
            self._set_id(mark, name)
            self.report(f"note: batch {name}: {counted(len(requests), 'request')} sent to {endpoint.url}")

    def _finish_all(self) -> None:
        """Wait for all batches under way, and store their replies."""
        query = "SELECT mark, url, id FROM batches"
        for mark, url, name in self.replies.file.execute(query).fetchall():
            if self.replies.batch_size is None:
                raise InputError(f"a batch of an earlier run is under way at {url}; repeat the command with batches to use it")
            endpoint = next((one for one in self.endpoints if one.url == url), None)
            if endpoint is None:
                raise InputError(f"a batch of an earlier run is under way at {url}; give this endpoint again")
            name = name or find(endpoint, mark)
            if name is None:  # the run was interrupted before the batch was created
                self._forget(mark)
                continue
            self._set_id(mark, name)
            self._finish(endpoint, mark, self._wait(endpoint, name))

    def _wait(self, endpoint: Endpoint, name: str) -> Any:
        """Return a batch once it has ended."""
        seen = None
        while True:
            with endpoint.errors("did not report on a batch"):
                batch = endpoint.client.batches.retrieve(name)
            counts = batch.request_counts
            state = (
                f"{batch.status}, {counts.completed if counts else 0:,} of {counts.total if counts else 0:,} requests answered"
            )
            if state != seen:
                self.report(f"note: batch {name}: {state}")
                seen = state
            if batch.status not in _OPEN:
                return batch
            time.sleep(POLL_S)

    def _finish(self, endpoint: Endpoint, mark: str, batch: Any) -> None:
        """Store the replies of a batch that has ended."""
        query = "SELECT key, version, expected FROM batched WHERE mark = ?"
        waiting = {key: (version, Usage(**json.loads(usage))) for key, version, usage in self.replies.file.execute(query, [mark])}
        results = dict(read_results(endpoint, batch))
        answered = 0
        for key, (version, expected) in waiting.items():
            result = results.get(key.hex(), f"the batch {batch.status} without it")
            answered += isinstance(result, Reply)
            self.replies.deliver(key, version, expected, result)
        self._forget(mark)
        if not answered:
            errors = "; ".join(one.message or "" for one in (batch.errors.data or [])) if batch.errors else ""
            why = errors or next((one for one in results.values() if isinstance(one, str)), "no reason given")
            raise EndpointError(f"{endpoint.url}: the batch {batch.id} {batch.status} without a reply: {why}")

    def _set_id(self, mark: str, name: str) -> None:
        with self.replies.file as file:
            file.execute("UPDATE batches SET id = ? WHERE mark = ?", [name, mark])

    def _forget(self, mark: str) -> None:
        with self.replies.file as file:
            file.execute("DELETE FROM batched WHERE mark = ?", [mark])
            file.execute("DELETE FROM batches WHERE mark = ?", [mark])


def upload(endpoint: Endpoint, requests: Mapping[bytes, BatchedRequest], temperature: float) -> str:
    """Upload a file of requests and return its id.

    Raises:
        EndpointError: the endpoint takes no files, or refuses this one.
    """
    lines = []
    for key, one in requests.items():
        body = endpoint.body(one.messages, one.max_tokens, temperature)
        lines.append(json.dumps({"custom_id": key.hex(), "method": "POST", "url": _PATH, "body": body}) + "\n")
    with endpoint.errors("did not accept a file for a batch"):
        file = ("requests.jsonl", "".join(lines).encode())
        return str(endpoint.client.files.create(file=file, purpose="batch").id)


def create(endpoint: Endpoint, file: str, mark: str) -> str:
    """Create a batch of an uploaded file and return its id; the request is not repeated, which might create it twice.

    Raises:
        EndpointError: the endpoint has no batches, or refuses this one.
    """
    with endpoint.errors("did not accept a batch"):
        created = endpoint.client.with_options(max_retries=0).batches.create(
            input_file_id=file, endpoint=_PATH, completion_window="24h", metadata={"runnel": mark}
        )
        return str(created.id)


def find(endpoint: Endpoint, mark: str) -> str | None:
    """Return the id of the batch with a mark, among the last ones of the endpoint.

    Raises:
        EndpointError: the endpoint does not list its batches.
    """
    with endpoint.errors("did not list its batches"):
        listed = islice(endpoint.client.batches.list(limit=100), _LISTED)
        return next((str(one.id) for one in listed if (one.metadata or {}).get("runnel") == mark), None)


def read_results(endpoint: Endpoint, batch: Any) -> Iterator[tuple[str, Reply | str]]:
    """Yield for each request of a batch that has ended its name with its reply, or with the reason why there is none.

    Lines that cannot be read are left out, so that their requests have no result.

    Raises:
        EndpointError: the endpoint does not return the results.
    """
    from openai.types.chat import ChatCompletion

    for name in filter(None, (batch.output_file_id, batch.error_file_id)):
        with endpoint.errors("did not return the results of a batch"):
            text = endpoint.client.files.content(name).text
        for line in filter(None, text.split("\n")):
            try:
                row = json.loads(line)
                response = row.get("response") or {}
                if response.get("status_code") == 200:
                    yield row["custom_id"], reply_of(ChatCompletion.construct(**response["body"]))
                else:
                    reason = row.get("error") or response.get("body") or "no reason given"
                    yield row["custom_id"], f"{response.get('status_code', 'error')}: {json.dumps(reason)[:200]}"
            except (ValueError, KeyError, TypeError, AttributeError, IndexError):
                continue
