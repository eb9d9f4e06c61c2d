"""An S3 server before another one, that answers some uploads with 503."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@dataclass
class BusyStore:
    """The server that runs.

    Attributes:
        url: its address.
        refused: how many of the next uploads of a name are answered with 503.
    """

    url: str
    refused: dict[str, int] = field(default_factory=dict)


@contextmanager
def busy_store(behind: str) -> Iterator[BusyStore]:
    """Passes requests on to the server `behind`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            name = urlsplit(self.path).path.rpartition("/")[2]
            if self.command == "PUT" and store.refused.get(name):
                store.refused[name] -= 1
                self.answer(503, {"Content-Type": "application/xml"}, SLOW_DOWN)
                return
            connection = http.client.HTTPConnection(urlsplit(behind).netloc)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            found = connection.getresponse()
            self.answer(found.status, dict(found.getheaders()), found.read())
            connection.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store = BusyStore(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
