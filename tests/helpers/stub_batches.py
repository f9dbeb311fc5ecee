"""OpenAI's files and batches for the local endpoint: a batch ends after some polls, and each of its lines can go wrong."""

import json
import re
from collections import deque
from collections.abc import Callable
from email.message import Message
from typing import Any

Body = dict[str, Any]
Complete = Callable[[Body], Body]


class StubBatches:
    """Files and batches of a stub endpoint.

    Attributes:
        polls: how often a batch is in progress before it has ended.
        faults: what to do wrong with the next lines of batches, one each: a status, "no text", "damaged" or "missing".
        ending: the state of the next batches when they end.
        created: the number of batches.
    """

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.batches: dict[str, Body] = {}
        self.faults: deque[int | str] = deque()
        self.polls, self.ending, self.created = 1, "completed", 0

    def post(self, path: str, headers: Message, body: bytes, complete: Complete) -> Body | None:
        """Return the answer to a POST, or None if the path is another's; `complete` returns the completion of a body."""
        if path.endswith("/files"):
            mark = headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
            part = next(one for one in body.split(b"--" + mark) if b'name="file"' in one)
            return self._file(part.partition(b"\r\n\r\n")[2].rstrip(b"\r\n").decode())
        if not path.endswith("/batches"):
            return None
        asked = json.loads(body)
        requests = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        assert all(one["method"] == "POST" and one["url"] == asked["endpoint"] == "/v1/chat/completions" for one in requests)
        self.created += 1
        name = f"batch-{self.created}"
        self.batches[name] = {"requests": requests, "left": self.polls, "metadata": asked["metadata"], "complete": complete}
        return self._show(name)

    def get(self, path: str) -> Body | str | None:
        """Return the answer to a GET, or None if the path is another's."""
        if found := re.search(r"/files/([^/]+)/content$", path):
            return self.files[found[1]]
        if found := re.search(r"/batches/([^/?]+)$", path):
            self.batches[found[1]]["left"] -= 1
            return self._show(found[1])
        if re.search(r"/batches(\?.*)?$", path):
            return {"object": "list", "data": [self._show(name) for name in reversed(self.batches)], "has_more": False}
        return None

    def _file(self, text: str) -> Body:
        name = f"file-{len(self.files)}"
        self.files[name] = text
        return {"id": name, "object": "file", "bytes": len(text), "created_at": 1, "filename": "f", "purpose": "batch"}

    def _show(self, name: str) -> Body:
        one = self.batches[name]
        ended = one["left"] < 0
        if ended and "output" not in one:
            lines = [self._line(request, one["complete"]) for request in one["requests"]] if self.ending != "failed" else []
            text = "".join(f"{line}\n" for line in lines if line is not None)
            one |= {"output": self._file(text)["id"], "status": self.ending}
        shown = {"id": name, "object": "batch", "status": one.get("status", "in_progress"), "metadata": one["metadata"]}
        shown |= {"completion_window": "24h", "created_at": 1, "endpoint": "/v1/chat/completions", "input_file_id": "f"}
        if self.ending == "failed" and ended:
            return shown | {"errors": {"object": "list", "data": [{"message": "no batches today"}]}}
        counts = {"total": len(one["requests"]), "completed": len(one["requests"]) if ended else 0, "failed": 0}
        return shown | {"request_counts": counts, "output_file_id": one.get("output")}

    def _line(self, request: Body, complete: Complete) -> str | None:
        fault = self.faults.popleft() if self.faults else None
        if fault == "missing":
            return None
        if fault == "damaged":
            return '{"custom_id": '
        body: Body = {"error": {"message": f"fault {fault}"}} if isinstance(fault, int) else complete(request["body"])
        if fault == "no text":
            body["choices"] = []
        response = {"status_code": fault if isinstance(fault, int) else 200, "body": body}
        return json.dumps({"custom_id": request["custom_id"], "response": response, "error": None})
