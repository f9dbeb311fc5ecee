"""A local S3 server (moto) that tests can look into, hold up and stop.

One request at a time is answered, so that "write only if there is none" is as atomic as S3's.
"""

import logging
import re
import threading
import urllib.request
from collections.abc import Callable
from typing import Any


class S3Server:
    """`before` is called with (access key, path) before an object is written that must not be there
    yet: a version of LanceDB.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._port = 0
        self.before: Callable[[str, str], None] = lambda key, path: None
        self.refuse: str | None = None  # an error code, e.g. "InvalidAccessKeyId"
        self.start()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        match = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        key = match[1] if match else ""
        path = environ["PATH_INFO"]
        if self.refuse:
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [f"<Error><Code>{self.refuse}</Code><Message>no</Message></Error>".encode()]
        if "HTTP_IF_NONE_MATCH" in environ:
            self.before(key, path)
        with self._lock:
            return list(self._app(environ, start_response))

    def start(self) -> None:
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self._port, self, threaded=True)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The objects stay for the next `start`."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        keys = {
            "AWS_ACCESS_KEY_ID": "first",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        return keys | {"AWS_ENDPOINT": f"http://127.0.0.1:{self._port}", "AWS_ALLOW_HTTP": "true"}

    def make_bucket(self, name: str) -> None:
        key = "AWS4-HMAC-SHA256 Credential=first/20260101/us-east-1/s3/aws4_request, Signature=0"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{name}", b"", {"Authorization": key}, method="PUT"
        )
        with urllib.request.urlopen(request):
            pass
