"""Requests: stores that answer wrongly, proxies, redirections, regions, forks and interrupts."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import StateError, StorageError
from streampack.remote.clients import asked, client_of
from streampack.remote.pace import Pace
from streampack.storage.storage import Storage
from tests.support.amazon import amazon
from tests.support.forked import Host
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import HTTPServer, S3Server

DATA = os.urandom(1_000_000)
PACE = Pace(20.0, 0)


def asked_range(connection: Connection) -> tuple[int, int]:
    first, last = map(int, re.findall(r"(?i)range: bytes=(\d+)-(\d+)", connection.head)[0])
    return first, last + 1


def served(
    connection: Connection, data: bytes = DATA, headers: str = 'ETag: "a"\n', total: str = ""
) -> None:
    """Answer as a proper server does."""
    if connection.method == "HEAD":
        connection.answer("200 OK", f"Content-Length: {len(data)}\n{headers}")
        return
    start, stop = asked_range(connection)
    sent = f"Content-Range: bytes {start}-{stop - 1}/{total or len(data)}\n"
    connection.answer("206 Partial Content", sent + headers, data[start:stop])


def begun(connection: Connection, headers: str) -> tuple[int, int]:
    """Send the head of an answer with the range that was asked for, its length for "{}"."""
    start, stop = asked_range(connection)
    sent = f"Content-Range: bytes {start}-{stop - 1}/{len(DATA)}\n{headers}"
    connection.send(f"HTTP/1.1 206 Partial Content\n{sent.format(stop - start)}\n")
    return start, stop


CHUNKED = "Transfer-Encoding: chunked\n"


def send_chunk(connection: Connection, data: bytes) -> None:
    connection.send(f"{len(data):x}\n")
    connection.send(data + b"\r\n")


def storage_of(folder: Path, **settings: Any) -> Storage:
    settings = {"retries": 0, "timeout_s": 20.0, **settings}
    return Storage(cache_dir=folder / "cache", **settings)


# Wrong bytes are never returned.


def cut(connection: Connection) -> None:
    start, stop = begun(connection, "Content-Length: {}\n")
    connection.send(DATA[start : stop - 1])


def cut_in_a_chunk(connection: Connection) -> None:
    start, stop = begun(connection, CHUNKED)
    connection.send(f"{stop - start:x}\n")
    connection.send(DATA[start : stop - 1])


def chunks_of_less(connection: Connection) -> None:
    start, stop = begun(connection, CHUNKED)
    send_chunk(connection, DATA[start : stop - 1])
    send_chunk(connection, b"")


def chunks_of_more(connection: Connection) -> None:
    start, stop = begun(connection, CHUNKED)
    send_chunk(connection, DATA[start : stop + 1])
    send_chunk(connection, b"")


def without_length_and_cut(connection: Connection) -> None:
    start, stop = begun(connection, "Connection: close\n")
    connection.send(DATA[start : stop - 1])


def shifted(connection: Connection) -> None:
    start, stop = asked_range(connection)
    head = f"Content-Range: bytes {start + 1}-{stop}/{len(DATA)}\n"
    connection.answer("206 Partial Content", head, DATA[start + 1 : stop + 1])


def compressed(connection: Connection) -> None:
    served(connection, headers="Content-Encoding: gzip\n", total="*")


def compressed_of_the_same_size(connection: Connection) -> None:
    served(connection, headers="Content-Encoding: gzip\n")


def compressed_whole(connection: Connection) -> None:
    connection.answer("200 OK", "Content-Encoding: gzip\n", DATA)


def of_several_parts(connection: Connection) -> None:
    served(connection, headers="Content-Type: multipart/byteranges; boundary=x\n")


def of_two_ranges(connection: Connection) -> None:
    served(connection, headers="Content-Range: bytes 0-9/10\n")


def endless_head(connection: Connection) -> None:
    while not connection.stopping.is_set():
        connection.send("HTTP/1.1 100 Continue\n\n" * 1000)


def endless_trailer(connection: Connection) -> None:
    start, stop = begun(connection, CHUNKED)
    send_chunk(connection, DATA[start:stop])
    connection.send("0\n")
    while not connection.stopping.is_set():
        connection.send("X: y\n" * 1000)


def whole_page(connection: Connection) -> None:
    connection.answer("200 OK", "", b"<html>")


def empty(connection: Connection) -> None:
    connection.answer("204 No Content")


@pytest.mark.parametrize(
    "respond",
    [cut, cut_in_a_chunk, chunks_of_less, chunks_of_more, without_length_and_cut, shifted,
     compressed, compressed_of_the_same_size, compressed_whole, of_several_parts, of_two_ranges,
     whole_page, empty, endless_head, endless_trailer],
)  # fmt: skip
def test_an_answer_with_other_bytes_is_an_error(
    respond: Callable[[Connection], None], tmp_path: Path
) -> None:
    def answered(connection: Connection) -> None:
        (served if connection.method == "HEAD" else respond)(connection)

    with raw_server(answered) as server:
        with pytest.raises(StorageError):
            storage_of(tmp_path).read_range(f"{server.url}/a.bin", 1000, 70_000)


def test_chunks_and_bodies_without_length_are_read(tmp_path: Path) -> None:
    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            served(connection)
            return
        start = asked_range(connection)[0]
        start, stop = begun(connection, "Connection: close\n" if start % 2 else CHUNKED)
        if start % 2:
            connection.send(DATA[start:stop])
            return
        for at in range(start, stop, 10_000):
            send_chunk(connection, DATA[at : min(at + 10_000, stop)])
        send_chunk(connection, b"")

    with raw_server(respond) as server:
        storage = storage_of(tmp_path)
        for start in (0, 1, 2, 3):
            got = storage.read_range(f"{server.url}/a.bin", start, 77_777)
            assert got == DATA[start:77_777]


def test_a_file_that_changes_between_two_ranges_is_refused(tmp_path: Path) -> None:
    versions = iter(["a", "a", "b", "b"])
    other = bytes(len(DATA))

    def respond(connection: Connection) -> None:
        version = next(versions)
        served(connection, DATA if version == "a" else other, f'ETag: "{version}"\n')

    with raw_server(respond) as server:
        storage = storage_of(tmp_path)
        url = f"{server.url}/a.bin"
        assert storage.read_range(url, 0, 100) == DATA[:100]
        with pytest.raises(StateError) as caught:
            storage.read_range(url, 100, 200)
        assert caught.value.path == url


def test_an_object_of_s3_that_changes_is_refused_by_the_store(s3: S3Server, tmp_path: Path) -> None:
    url = s3.put("a.bin", DATA)
    storage = storage_of(tmp_path)
    (listed,) = storage.list(url)
    client = client_of("s3", {}, PACE, lambda: None)
    assert client is not None
    assert client.request(url, {}, listed.version).headers["If-Match"] == listed.version[5:].join(
        '""'
    )
    s3.put("a.bin", bytes(len(DATA)))
    with pytest.raises(StateError):
        storage.read_range(listed, 0, 100)


def test_a_file_that_got_shorter_is_refused(tmp_path: Path) -> None:
    lengths = iter([len(DATA), 500, 500])

    def respond(connection: Connection) -> None:
        size = next(lengths)
        if connection.method == "GET":
            head = f"Content-Range: bytes */{size}\n"
            connection.answer("416 Range Not Satisfiable", head)
        else:
            served(connection, DATA[:size], f'ETag: "{size}"\n')

    with raw_server(respond) as server, pytest.raises(StateError):
        storage_of(tmp_path).read_range(f"{server.url}/a.bin", 1000, 2000)


# Connections


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    def respond(connection: Connection) -> None:  # and closes, which its answer does not tell
        start, stop = begun(connection, "Content-Length: {}\n")
        connection.send(DATA[start:stop])

    client = client_of("http", {}, PACE, lambda: None)
    assert client is not None
    with raw_server(respond) as server:
        for start in range(20):
            asked_for = {"Range": f"bytes={start}-{start + 9}"}
            with asked(client, f"{server.url}/a.bin", asked_for) as answer:
                assert b"".join(answer.parts()) == DATA[start : start + 10]
        assert len(server.requests) == 20


def test_a_host_with_two_addresses_is_reached_by_the_second(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    client = client_of("http", {}, PACE, lambda: None)
    assert client is not None
    port = http.url.rpartition(":")[2]
    # ::1 has no server on this port, 127.0.0.1 has.
    with asked(client, f"http://localhost:{port}/a.bin", {}) as answer:
        assert b"".join(answer.parts()) == DATA


def test_a_server_by_ipv6_is_read(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with raw_server(served, "::1") as server:
        assert storage_of(tmp_path).read_range(f"{server.url}/a.bin", 5, 9) == DATA[5:9]
    assert f"Host: {server.url.removeprefix('http://')}\r\n" in server.requests[0]


def test_credentials_go_to_no_other_server(tmp_path: Path) -> None:
    def other(connection: Connection) -> None:
        served(connection)

    with raw_server(other) as second:

        def first(connection: Connection) -> None:
            connection.answer("302 Found", f"Location: {second.url}/b.bin\n")

        with raw_server(first) as server:
            options = {"headers": {"Authorization": "Bearer x"}, "cookies": {"a": "b"}}
            client = client_of("http", options, PACE, lambda: None)
            assert client is not None
            for _ in range(2):
                with asked(client, f"{server.url}/a.bin", {"Range": "bytes=5-9"}) as answer:
                    assert b"".join(answer.parts()) == DATA[5:10]
            assert all("Authorization: Bearer x" in head for head in server.requests)
            assert all("Cookie: a=b" in head for head in server.requests)
        assert len(second.requests) == 2
        assert not any("Bearer" in head or "Cookie" in head for head in second.requests)


def test_user_and_password_of_a_url_are_sent(tmp_path: Path) -> None:
    with raw_server(served) as server:
        client = client_of("http", {}, PACE, lambda: None)
        assert client is not None
        url = server.url.replace("http://", "http://me:p%40ss@") + "/a%20b ü.bin?x=1#part"
        with asked(client, url, {"Range": "bytes=5-9"}) as answer:
            assert b"".join(answer.parts()) == DATA[5:10]
        (head,) = server.requests
    assert head.startswith("GET /a%20b%20%C3%BC.bin?x=1 HTTP/1.1")
    assert base64.b64encode(b"me:p@ss").decode() in head


@pytest.mark.parametrize("where", ["option", "environment"])
def test_a_proxy_is_asked(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server(served) as proxy:
        at = proxy.url.replace("http://", "http://me:pw@")
        if where == "environment":
            monkeypatch.setenv("http_proxy", at)
            monkeypatch.setenv("no_proxy", "other.invalid")
        options = {"proxy": at} if where == "option" else {"client_kwargs": {"trust_env": True}}
        client = client_of("http", options, PACE, lambda: None)
        assert client is not None
        with asked(client, "http://data.invalid/a.bin", {"Range": "bytes=0-9"}) as answer:
            assert b"".join(answer.parts()) == DATA[:10]
        (head,) = proxy.requests
    assert head.startswith("GET http://data.invalid/a.bin HTTP/1.1")
    assert "Proxy-Authorization: Basic" in head


# S3: addresses and regions as botocore makes them


@cache
def botocore_session() -> Any:
    """Of all tests, as it reads its descriptions of services anew."""
    import botocore.session

    return botocore.session.Session()


def sent_by_botocore(bucket: str, options: dict[str, Any]) -> str:
    from botocore.config import Config

    sent: list[str] = []

    def stop(request: Any, **_: Any) -> None:
        sent.append(request.url)
        raise InterruptedError

    client = botocore_session().create_client(
        "s3",
        config=Config(**(options.get("config_kwargs") or {})),
        endpoint_url=options.get("endpoint_url"),
        **(options.get("client_kwargs") or {}),
    )
    client.meta.events.register("before-send.s3", stop)
    with pytest.raises(InterruptedError):
        client.get_object(Bucket=bucket, Key="a b/ü+%~.bin")
    return sent[0]


def style(addressing: str) -> dict[str, Any]:
    return {"s3": {"addressing_style": addressing}}


REGIONS = ("eu-west-1", "cn-north-1", "us-gov-west-1")


@pytest.mark.parametrize("bucket", ["bucket", "my.bucket", "My_Bucket"])
@pytest.mark.parametrize(
    "options",
    [
        *({"client_kwargs": {"region_name": region}} for region in REGIONS),
        {"endpoint_url": "http://store.example:9000"},
        {"endpoint_url": "http://store.example/base"},
        {"endpoint_url": "https://s3.example", "config_kwargs": style("virtual")},
        {"client_kwargs": {"region_name": "eu-west-1"}, "config_kwargs": style("path")},
    ],
    ids=str,
)  # fmt: skip
def test_an_object_of_s3_has_the_address_that_botocore_gives_it(
    bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    client = client_of("s3", options, PACE, lambda: None)
    assert client is not None
    request = client.request(f"s3://{bucket}/a b/ü+%~.bin", {}, "")
    assert request.url == sent_by_botocore(bucket, options)


def test_a_bucket_in_another_region_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[str] = []

    def respond(connection: Connection) -> None:
        regions.append(re.findall(r"/([a-z0-9-]+)/s3/aws4_request", connection.head)[0])
        if regions[-1] == "eu-west-1":
            served(connection)
        else:
            connection.answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\n")

    with amazon(respond, monkeypatch) as (client, server):
        for _ in range(2):
            with asked(client, "s3://bucket/a.bin", {"Range": "bytes=0-9"}) as answer:
                assert b"".join(answer.parts()) == DATA[:10]
        assert [head.split()[1].split("/")[2] for head in server.requests] == [
            "bucket.s3.us-east-1.amazonaws.com",
            "bucket.s3.eu-west-1.amazonaws.com",
            "bucket.s3.eu-west-1.amazonaws.com",
        ]


def test_credentials_that_expire_are_renewed(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program gives credentials for a second; each request has ones that are valid."""
    url = s3.put("a.bin", DATA)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    program = tmp_path / "program.py"
    program.write_text(
        "import datetime, json\n"
        "now = datetime.datetime.now(datetime.timezone.utc)\n"
        "until = (now + datetime.timedelta(seconds=1)).isoformat()\n"
        "print(json.dumps(dict(Version=1, AccessKeyId=f'key{now.microsecond}',"
        " SecretAccessKey='x', SessionToken='t', Expiration=until)))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    client = client_of("s3", {}, PACE, lambda: None)
    assert client is not None
    keys = set()
    for pause_s in (0, 1.1):
        time.sleep(pause_s)
        request = client.request(url, {}, "")
        keys |= set(re.findall(r"Credential=(\w+)/", request.headers["Authorization"]))
        with asked(client, url, {}) as answer:
            assert b"".join(answer.parts()) == DATA
    assert len(keys) == 2


def test_options_without_a_counterpart_leave_the_url_to_fsspec() -> None:
    for protocol, options in (
        ("s3", {"s3_additional_kwargs": {"SSECustomerKey": "x"}}),
        ("s3", {"client_kwargs": {"use_ssl": True, "api_version": "x"}}),
        ("s3", {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}),
        ("http", {"client_kwargs": {"timeout": 1}}),
        ("http", {"params": {"a": "b"}}),
        ("http", {"auth": ("me", "pw")}),
        ("memory", {}),
    ):
        assert client_of(protocol, options, PACE, lambda: None) is None, options


def test_the_payer_is_named() -> None:
    options = {"key": "a", "secret": "b", "requester_pays": True, "endpoint_url": "http://x"}
    client = client_of("s3", options, PACE, lambda: None)
    assert client is not None
    request = client.request("s3://bucket/a", {}, "")
    assert request.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in request.headers["Authorization"]  # it is signed


# Forks and interrupts

FORKS = """
import os, signal, sys, threading
from streampack.storage.storage import Storage

url, cache, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
storage = Storage(cache_dir=cache, retries=0, timeout_s=30)
first = storage.read_range(url, 0, 1000)
stop = threading.Event()

def read():
    while not stop.is_set():
        assert storage.read_range(url, 0, 1000) == first

threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for number in range(forks):
    child = os.fork()
    if not child:
        signal.alarm(60)  # a hang
        os._exit(storage.read_range(url, 0, 1000) != first)
    assert os.waitpid(child, 0)[1] == 0, number
stop.set()
"""


@pytest.mark.parametrize("forks", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_forks_read_while_threads_of_the_parent_do(
    forks: int, s3: S3Server, host: Host, tmp_path: Path
) -> None:
    url = s3.put("a.bin", DATA)
    (tmp_path / "program.py").write_text(FORKS)
    arguments, environment = (url, tmp_path / "cache", forks), dict(os.environ)  # of the store
    statuses, output = host.run(tmp_path / "program.py", *arguments, environments=(environment,))
    assert statuses == [0], output


READING = """
import sys, threading, time
from streampack.storage.storage import Storage

url, cache, where = sys.argv[1:]
storage = Storage(cache_dir=cache, timeout_s=600)

def read():
    storage.read_range(url, 0, 1000)

if where == "thread":
    try:
        threading.Thread(target=read, daemon=True).start()
        time.sleep(600)
    finally:
        print("interrupted", time.monotonic(), flush=True)
try:
    read()
finally:
    print("interrupted", time.monotonic(), flush=True)
"""


def before_headers(connection: Connection) -> None:
    connection.stopping.wait(600)


def in_headers(connection: Connection) -> None:
    connection.send("HTTP/1.1 206 Partial\n")
    connection.drip(b"X-A: b\r\n", 0.05)


def in_body(connection: Connection) -> None:
    begun(connection, "")
    connection.send(DATA[:100])
    connection.stopping.wait(600)


def failing(connection: Connection) -> None:
    connection.answer("503 Slow Down", "Retry-After: 300\n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("state", [before_headers, in_headers, in_body, failing])
def test_an_interrupt_ends_a_process_in_every_state_of_the_store(
    state: Callable[[Connection], None], where: str, tmp_path: Path
) -> None:
    def respond(connection: Connection) -> None:
        (served if connection.method == "HEAD" else state)(connection)

    with raw_server(respond) as server:
        command = [sys.executable, "-c", READING, f"{server.url}/a.bin", str(tmp_path), where]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            while not any(head.startswith("GET") for head in server.requests):
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        assert b"KeyboardInterrupt" in err
        ended, began = time.monotonic(), float(out.split()[1])
        assert ended - began < 20  # the machine may be busy; without a wait it is a tenth
