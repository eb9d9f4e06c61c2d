"""Answers that look right: other bytes, other versions, redirections and connections kept open."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import StateError, StorageError
from streampack.remote.clients import asked, client_of
from streampack.remote.pace import Pace
from streampack.remote.wire import Request
from streampack.storage.storage import Storage
from tests.support.amazon import amazon
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import S3Server

DATA = bytes(range(256)) * 8
PACE = Pace(20.0, 0)


@pytest.fixture
def once(tmp_path: Path) -> Storage:
    """A storage that tries once."""
    return Storage(cache_dir=tmp_path / "cache", retries=0, timeout_s=20)


def of_bytes(connection: Connection, start: int, stop: int, headers: str = "") -> None:
    sent = f"Content-Range: bytes {start}-{stop - 1}/{len(DATA)}\n"
    connection.answer("206 Partial Content", sent + headers, DATA[start:stop])


# The start of a file, of which nothing is known.


def of_other_bytes(connection: Connection) -> None:
    of_bytes(connection, 100, 200)


def compressed(connection: Connection) -> None:
    connection.answer("200 OK", "Content-Encoding: gzip\n", DATA)


@pytest.mark.parametrize("respond", [of_other_bytes, compressed])
def test_a_start_of_other_bytes_is_an_error(
    respond: Callable[[Connection], None], once: Storage
) -> None:
    with raw_server(respond) as server, pytest.raises(StorageError):
        once.remote.read_start(f"{server.url}/a.png", 100)


def test_a_file_of_a_server_that_counts_no_byte_for_head_is_read(once: Storage) -> None:
    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            connection.answer("200 OK", "Content-Length: 0\n")
        elif connection.path == "/empty":
            connection.answer("416 Range Not Satisfiable", "Content-Range: bytes */0\n")
        else:
            of_bytes(connection, 0, 1 if "bytes=0-0" in connection.head else len(DATA))

    with raw_server(respond) as server:
        (listed,) = once.list(f"{server.url}/a.bin")
        assert once.read_range(listed, 0, len(DATA)) == DATA
        assert once.size(f"{server.url}/empty") == 0


def test_a_file_that_fsspec_takes_for_empty_is_an_error_if_it_is_not(tmp_path: Path) -> None:
    def respond(connection: Connection) -> None:
        has_bytes = connection.method == "GET" and "/empty" not in connection.path
        connection.answer("200 OK", "", DATA if has_bytes else b"")

    options = {"params": {"a": "b"}}  # which our own requests do not know
    once = Storage(cache_dir=tmp_path, retries=0, storage_options=options)
    with raw_server(respond) as server:
        assert once.size(f"{server.url}/empty") == 0
        with pytest.raises(StorageError):
            once.size(f"{server.url}/a.bin")


def test_an_object_of_s3_that_was_stored_compressed_is_listed_by_its_name(
    s3: S3Server, once: Storage
) -> None:
    s3.client.put_object(Bucket=s3.bucket, Key="c/a.bin", Body=DATA, ContentEncoding="gzip")
    (listed,) = once.list("s3://bucket/c/a.bin")
    assert [listed] == once.list("s3://bucket/c/*")
    assert once.read_range(listed, 0, len(DATA)) == DATA


def test_a_size_that_no_file_has_is_refused(once: Storage) -> None:
    def respond(connection: Connection) -> None:
        connection.answer("200 OK", f"Content-Length: {10**30}\n")

    with raw_server(respond) as server, pytest.raises(StorageError):
        once.list(f"{server.url}/a.bin")


# Versions


def test_a_header_that_differs_by_answer_is_no_version(once: Storage) -> None:
    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            connection.answer(
                "200 OK", f"Content-Length: {len(DATA)}\nContent-MD5: a\nUpdated: 1\n"
            )
        else:
            of_bytes(connection, 0, 100, "Content-MD5: b\nUpdated: 2\n")

    with raw_server(respond) as server:
        (file,) = once.list(f"{server.url}/a.bin")
        assert once.read_range(file, 0, 100) == DATA[:100]


@pytest.mark.parametrize(
    ("listed", "read", "then"),
    [  # by the mark that both answers have, or by another look-up
        ('ETag: "a"\nLast-Modified: 1\n', 'ETag: W/"a"\nLast-Modified: 2\n', 'ETag: "a"\n'),
        ('ETag: "a"\n', "Last-Modified: 1\n", 'ETag: "b"\n'),
    ],
)
def test_a_file_that_was_replaced_is_refused_if_its_marks_vary_by_request(
    listed: str, read: str, then: str, once: Storage
) -> None:
    of_head = [listed]

    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            connection.answer("200 OK", f"Content-Length: {len(DATA)}\n{of_head[0]}")
        else:
            of_bytes(connection, 0, 100, read)

    with raw_server(respond) as server:
        (file,) = once.list(f"{server.url}/a.bin")
        of_head[0] = then
        with pytest.raises(StateError):
            once.read_range(file, 0, 100)


# Redirections


def test_credentials_follow_a_redirection_to_the_same_server_alone() -> None:
    secret = {"authorization": "x", "Cookie": "x", "X-Amz-Security-Token": "x"}
    for url, location, is_same in (
        ("http://a/x", "/y", True),
        ("http://a/x", "https://a/x", True),  # as aiohttp does
        ("http://a:80/x", "https://a:443/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a:81/x", "https://a/x", False),
        ("http://a/x", "https://a:444/x", False),
        ("http://a/x", "//b/x", False),
    ):
        moved = Request(url, {**secret, "Range": "bytes=0-0"}).moved(location)
        assert moved.headers.keys() == {"Range", *(secret if is_same else ())}, (url, location)


def test_a_redirection_is_followed_as_its_bytes_are_and_by_http_alone() -> None:
    as_read = "/ü b%20c#d".encode().decode("latin-1")
    moved = Request("http://a/x", {}).moved(as_read)
    assert moved.head("").startswith(b"GET /%C3%BC%20b%20c HTTP/1.1")
    with pytest.raises(ValueError, match="ftp"):
        moved.moved("ftp://a/x")


def test_a_redirection_of_s3_to_another_region_is_signed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def respond(connection: Connection) -> None:
        if "eu-west-1" not in connection.path:
            to = "http://bucket.s3-eu-west-1.amazonaws.com/a.bin"
            headers = f"x-amz-bucket-region: eu-west-1\nLocation: {to}\n"
            connection.answer("307 Temporary Redirect", headers)
        elif "/eu-west-1/s3/aws4_request" not in connection.head:
            connection.answer("403 Forbidden")
        else:
            of_bytes(connection, 0, 10)

    with amazon(respond, monkeypatch) as (client, _):
        with asked(client, "s3://bucket/a.bin", {"Range": "bytes=0-9"}) as answer:
            assert b"".join(answer.parts()) == DATA[:10]


# Connections


class KeptOpen(BaseHTTPRequestHandler):
    """Answers with a body of five bytes, by the path also after a redirection."""

    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def do_GET(self) -> None:
        is_moved = self.path == "/moved"
        self.send_response(302 if is_moved else 200)
        self.send_header("Location", "/a")
        self.send_header("Content-Length", "0" if is_moved else "5")
        self.end_headers()
        self.wfile.write(b"" if is_moved or self.command == "HEAD" else b"12345")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def kept_open() -> Iterator[int]:
    """Serve `KeptOpen` on a port of all addresses of this machine."""
    server = ThreadingHTTPServer(("0.0.0.0", 0), KeptOpen)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_connections_to_many_servers_do_not_stay_open(once: Storage) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with kept_open() as port:
        free = {*range(1000)} - {*map(int, os.listdir("/proc/self/fd"))}
        resource.setrlimit(resource.RLIMIT_NOFILE, (sorted(free)[120], before[1]))
        try:
            for number in range(150):
                assert once.size(f"http://127.0.1.{number}:{port}/a") == 5
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_connection_serves_further_requests_after_each_kind_of_answer(once: Storage) -> None:
    client = client_of("http", {}, PACE, lambda: None)
    assert client is not None
    KeptOpen.connections = 0
    with kept_open() as port:
        url = f"http://127.0.0.1:{port}"
        for _ in range(3):
            assert once.size(f"{url}/a") == 5
            assert once.remote.read_start(f"{url}/moved") == b"12345"
            with asked(client, f"{url}/a", {}) as answer:
                assert b"".join(answer.parts()) == b"12345"
    assert KeptOpen.connections == 2  # one of each client
