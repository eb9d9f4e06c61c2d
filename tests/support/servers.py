"""Real servers on loopback for tests: an S3 object store, and HTTP with planned faults."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["HTTPServer", "Request", "S3Server", "http_server", "s3_server"]


@dataclass(frozen=True)
class S3Server:
    """A running object store with one empty bucket.

    Attributes:
        endpoint: its URL, also set in the environment as S3_ENDPOINT_URL and AWS_ENDPOINT_URL.
        bucket: name of the bucket.
        client: a boto3 client for it.
    """

    endpoint: str
    bucket: str
    client: Any

    def put(self, key: str, data: bytes) -> str:
        """Store an object and return its URL."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        return f"s3://{self.bucket}/{key}"

    def put_folder(self, folder: str | Path, prefix: str = "") -> str:
        """Store every file below `folder` and return the URL of the prefix."""
        folder = Path(folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = "/".join(
                    part for part in (prefix, path.relative_to(folder).as_posix()) if part
                )
                self.put(key, path.read_bytes())
        return f"s3://{self.bucket}/{prefix}".rstrip("/")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[S3Server]:
    """An S3 server on a free port; credentials and endpoint are in the environment meanwhile."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    values = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testtest",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
    }
    try:
        with _environment(values):
            client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
            client.create_bucket(Bucket=bucket)
            yield S3Server(endpoint, bucket, client)
    finally:
        server.stop()


@dataclass(frozen=True)
class Request:
    """One request that reached the server."""

    method: str
    path: str
    range: str | None


@dataclass
class HTTPServer:
    """A running HTTP server over a folder. Change the faults while it runs.

    Attributes:
        url: its address, without a slash at the end.
        folder: the root of its files.
        requests: all requests received, in order.
        fail_next: this many of the next GET requests are answered with `fail_status`.
        fail_status: that status.
        fail_head_too: HEAD requests fail (and count) as well.
        cut_next: this many of the next GET answers break off half way through the body.
        ranges: whether Range requests are honoured; otherwise the whole file is sent.
        one_by_one: bodies are sent one byte at a time.
        gate: if set, called with the path before the body of a GET is sent (to hold it up).
        halfway: if set, called with the path after half of the body of a GET is sent.
        hold: if set, called with the range of bytes before the answer to a GET is sent.
    """

    url: str
    folder: Path
    requests: list[Request] = field(default_factory=list)
    fail_next: int = 0
    fail_status: int = 503
    fail_head_too: bool = False
    cut_next: int = 0
    ranges: bool = True
    one_by_one: bool = False
    gate: Callable[[str], None] | None = None
    halfway: Callable[[str], object] | None = None
    hold: Callable[[int, int], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str, name: str = "") -> int:
        """Count the requests of this method for paths that end in `name`."""
        with self.lock:
            return sum(r.method == method and r.path.endswith(name) for r in self.requests)

    def take_fault(self, method: str) -> str | None:
        """Return the planned fault of this request, and count it off."""
        with self.lock:
            if self.fail_next > 0 and (method == "GET" or self.fail_head_too):
                self.fail_next -= 1
                return "fail"
            if self.cut_next > 0 and method == "GET":
                self.cut_next -= 1
                return "cut"
        return None


def _handler(state: HTTPServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            name = unquote(urlsplit(self.path).path).lstrip("/")
            with state.lock:
                state.requests.append(Request(self.command, name, self.headers.get("Range")))
            fault = state.take_fault(self.command)
            if fault == "fail":
                self.refuse(state.fail_status)
                return
            path = (state.folder / name).resolve()
            if not path.is_file() or not path.is_relative_to(state.folder.resolve()):
                self.refuse(404)
                return
            size = path.stat().st_size
            start, stop = 0, size
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
            if asked and state.ranges:
                first, last = asked.groups()
                if first:
                    start, stop = int(first), min(stop, int(last) + 1 if last else stop)
                else:
                    start = max(0, stop - int(last))
                if start >= stop:
                    self.refuse(416)
                    return
                if state.hold is not None:
                    state.hold(start, stop)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            else:
                self.send_response(200)
            if state.ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}-{size:x}"')
            self.end_headers()
            if not with_body:
                return
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(stop - start)
            if state.gate is not None:
                self.wfile.write(data[:1])
                self.wfile.flush()
                data = data[1:]
                state.gate(name)
            if state.halfway is not None:
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                data = data[len(data) // 2 :]
                state.halfway(name)
            if fault == "cut":
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                self.close_connection = True
                return
            step = 1 if state.one_by_one else len(data) or 1
            for at in range(0, len(data), step):
                self.wfile.write(data[at : at + step])

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hung up is part of the tests


@contextmanager
def http_server(folder: str | Path) -> Iterator[HTTPServer]:
    """Serve the files below `folder` with HEAD and Range on a free port of 127.0.0.1."""
    state = HTTPServer(url="", folder=Path(folder))
    server = _Server(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
