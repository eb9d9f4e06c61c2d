"""Errors about servers that fail, each in its own way; they run on loopback."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import ConfigError, StateError, StorageError
from streampack.file_info import shown
from streampack.remote.failures import TooSlowError, retry_after_s, without_secrets
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import S3Server

DATA = bytes(range(256)) * 40


def file_at(connection: Connection, headers: str = "", body: bytes = DATA) -> None:
    connection.answer("200 OK", "Accept-Ranges: bytes\n" + headers, body)


def read(storage: Storage, url: str) -> bytes:
    with storage.open(url) as file:
        return file.read(0, file.num_bytes)


def failure(storage: Storage, url: str, act: Callable[[Storage, str], Any] = read) -> str:
    """Return the text of the error that reading raises, after checks of its class and cause."""
    error = error_of(storage, url, act)
    assert error.fact
    assert error.remedy
    return str(error)


def error_of(storage: Storage, url: str, act: Callable[[Storage, str], Any]) -> StorageError:
    with pytest.raises(StorageError) as caught:
        act(storage, url)
    return caught.value


@pytest.fixture
def once(tmp_path: Path) -> Storage:
    """A storage that tries once."""
    return Storage(cache_dir=tmp_path / "cache", retries=0, timeout_s=30)


# A server that drips: never silent for long, and never done.


def drip_in_body(connection: Connection) -> None:
    connection.send("HTTP/1.1 200 OK\nContent-Length: 500\n\n")
    if connection.method == "GET":
        connection.drip(b"x", 0.01)


def drip_in_whole_file(connection: Connection) -> None:
    connection.send(f"HTTP/1.1 200 OK\nContent-Length: {64 * BLOCK_BYTES}\n\n")
    if connection.method == "GET":
        connection.drip(b"x", 0.01)


def drip_in_range(connection: Connection) -> None:
    if connection.method == "HEAD":
        file_at(connection)
        return
    connection.send(
        "HTTP/1.1 206 Partial\nContent-Range: bytes 0-999/10240\nContent-Length: 1000\n\n"
    )
    connection.drip(b"x", 0.01)


def drip_in_headers(connection: Connection) -> None:
    connection.send("HTTP/1.1 200 OK\n")
    connection.drip(b"X-Nothing: x\r\n", 0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("respond", "act"),
    [
        (drip_in_body, read),
        (drip_in_whole_file, read),
        (drip_in_range, lambda storage, url: storage.read_range(url, 0, 1000)),
        (drip_in_headers, lambda storage, url: storage.size(url)),
        (drip_in_headers, lambda storage, url: storage.list(url)),
    ],
    ids=["body", "whole file", "range", "headers", "listing"],
)
def test_a_server_that_drips_is_given_up(
    respond: Callable[[Connection], None], act: Callable[[Storage, str], Any], tmp_path: Path
) -> None:
    impatient = Storage(cache_dir=tmp_path / "cache", retries=0, timeout_s=0.3)
    with raw_server(respond) as server:
        error = error_of(impatient, f"{server.url}/a.bin", act)
    assert error.failure == "transient"
    assert isinstance(error.__cause__, TooSlowError)


def test_a_slow_server_that_keeps_the_pace_is_read_to_its_end(tmp_path: Path) -> None:
    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            file_at(connection, body=b"x" * 60)
            return
        connection.send("HTTP/1.1 200 OK\nContent-Length: 60\n\n")
        for _ in range(60):  # longer than the timeout, all together
            connection.send(b"x")
            time.sleep(0.01)

    for least in (5, 0):
        storage = Storage(cache_dir=tmp_path / str(least), timeout_s=0.5, min_bytes_per_s=least)
        with raw_server(respond) as server:
            assert read(storage, f"{server.url}/a.bin") == b"x" * 60


# Each its sentence.


def test_an_answer_that_is_compressed_in_transfer_is_refused(once: Storage) -> None:
    packed = gzip.compress(DATA)

    def without_length(connection: Connection) -> None:
        connection.send("HTTP/1.1 200 OK\nContent-Encoding: gzip\nConnection: close\n\n")
        if connection.method == "GET":
            connection.send(packed)

    def with_length(connection: Connection) -> None:
        file_at(connection, "Content-Encoding: gzip\n", packed)

    for respond in (without_length, with_length):
        with raw_server(respond) as server:
            words = failure(once, f"{server.url}/a.bin")
        assert "Content-Length" in words
        assert "compress" in words


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
def test_an_absent_server_is_retried(host: str, tmp_path: Path) -> None:
    error = error_of(Storage(cache_dir=tmp_path, retries=1), f"http://{host}/a.bin", read)
    assert error.failure == "transient"
    assert "2 attempts" in str(error)
    assert host.partition(":")[0] in str(error)


def test_redirects_in_a_circle_are_an_error_without_secrets(tmp_path: Path) -> None:
    def respond(connection: Connection) -> None:
        other = "/b.bin" if connection.path.startswith("/a") else "/a.bin"
        connection.answer("302 Found", f"Location: {other}?token=hunter2\n")

    with raw_server(respond) as server:
        words = failure(Storage(cache_dir=tmp_path, retries=0), f"{server.url}/a.bin")
    assert "TooManyRedirects" in words
    assert "hunter2" not in words


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("401 Unauthorized", "denied"),
        ("403 Forbidden", "denied"),
        ("404 Not Found", "missing"),
        ("410 Gone", "missing"),
        ("418 Teapot", "other"),
    ],
)
def test_a_refusal_names_the_file_and_is_not_retried(
    tmp_path: Path, status: str, expected: str
) -> None:
    storage = Storage(cache_dir=tmp_path, retries=5)
    with raw_server(lambda connection: connection.answer(status)) as server:
        error = error_of(storage, f"{server.url}/a.bin?signature=hunter2", read)
    assert error.failure == expected
    assert error.path == f"{server.url}/a.bin"
    assert error.__cause__ is not None
    assert "after 1 attempt:" in str(error)
    assert "hunter2" not in str(error)


# Retry-After


def test_a_server_that_asks_to_wait_is_not_asked_before(tmp_path: Path) -> None:
    times: list[float] = []

    def respond(connection: Connection) -> None:
        times.append(time.monotonic())
        if len(times) <= 2:  # HEAD, and the GET after it
            connection.answer("503 Busy", "Retry-After: 1\n")
        else:
            file_at(connection)

    with raw_server(respond) as server:
        assert read(Storage(cache_dir=tmp_path, retries=1), f"{server.url}/a.bin") == DATA
    assert times[2] - times[1] >= 1.0


class AnsweredError(OSError):
    def __init__(self, value: str) -> None:
        super().__init__("503")
        self.headers = {"retry-after": value}


def test_retry_after_is_a_number_or_a_date() -> None:
    now_s = 1_700_000_000
    assert retry_after_s(AnsweredError("120")) == 120
    assert retry_after_s(AnsweredError(formatdate(now_s + 90, usegmt=True)), now_s) == 90
    assert retry_after_s(AnsweredError(formatdate(now_s - 90, usegmt=True)), now_s) == 0
    for nonsense in ("", "soon", "-5", "9" * 400, "Mon, 99 Foo 2020"):
        assert retry_after_s(AnsweredError(nonsense), now_s) == 0
    assert retry_after_s(OSError("no answer at all")) == 0


def test_retry_after_is_found_in_answers_of_s3(tmp_path: Path) -> None:
    import botocore.exceptions

    headers = {"retry-after": "7"}
    answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPHeaders": headers}}
    error = OSError("busy")
    error.__cause__ = botocore.exceptions.ClientError(answer, "GetObject")
    assert retry_after_s(error) == 7


def test_messages_show_no_query_and_no_password() -> None:
    text = "no https://me:pw@host/a?sig=x, nor 'abfs://c@account/b?sv=1' (http://h/?q)"
    assert without_secrets(text) == "no https://host/a nor 'abfs://account/b' (http://h/)"
    assert without_secrets("https://me:p@ss@host/a") == "https://host/a"
    for url, expected in (
        ("https://me:p@ss@host/a?sig=x#y", "https://host/a"),
        ("https://token@host?sig=x/y", "https://host"),
        ("sftp://me:pw@host/a?b", "sftp://host/a?b"),
        ("abfs://container@account/a@b:c?d", "abfs://container@account/a@b:c?d"),
        ("me:pw@host/a?b", "me:pw@host/a?b"),  # a local name
    ):
        assert shown(url) == expected


# Ranges


@pytest.mark.parametrize(
    ("length", "body"),
    [
        ("bytes 5-104/10240", DATA[5:105]),
        ("bytes 0-99/10240", DATA[:99]),
        ("bytes 0-99/10240", DATA[:101]),
        ("bytes 0-9/10240", DATA[:10]),
        ("", DATA[:100]),
    ],
    ids=["another", "shorter", "longer", "less", "unsaid"],
)
def test_another_range_than_was_asked_for_is_an_error_that_is_retried(
    tmp_path: Path, length: str, body: bytes
) -> None:
    wrong = [length]

    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            file_at(connection)
        elif wrong:
            header = f"Content-Range: {wrong[0]}\n" if length else ""
            connection.answer("206 Partial Content", header, body)
        else:
            connection.answer(
                "206 Partial Content", "Content-Range: bytes 0-99/10240\n", DATA[:100]
            )

    def act(storage: Storage, url: str) -> bytes:
        return storage.read_range(url, 0, 100)

    with raw_server(respond) as server:
        url = f"{server.url}/a.bin"
        error = error_of(Storage(cache_dir=tmp_path, retries=1), url, act)
        assert error.failure == "transient"
        assert "2 attempts" in str(error)
        assert sum("GET" in head for head in server.requests) == 2
        wrong.clear()
        assert act(Storage(cache_dir=tmp_path), url) == DATA[:100]


# Versions. Some proxies give a file another ETag in every answer.


@pytest.mark.parametrize(
    ("etag", "time", "raises"),
    [
        ('"{n}"', "Sun, 06 Nov 1994 08:49:37 GMT", False),
        ('W/"{n}"', "", False),
        ('W/"{n}"', "Sun, 06 Nov 1994 08:49:37 GMT", False),
        ('"same"', "Sun, 06 Nov 1994 08:49:{n} GMT", False),
        ('"{n}"', "Sun, 06 Nov 1994 08:49:{n} GMT", True),
        ('W/"same"', "Sun, 06 Nov 1994 08:49:{n} GMT", True),
        ('"{n}"', "", True),
    ],
)
def test_a_file_counts_as_replaced_if_etag_and_time_differ(
    once: Storage, etag: str, time: str, raises: bool
) -> None:
    answers = iter(range(10, 60))

    def respond(connection: Connection) -> None:
        n = next(answers)
        headers = f"ETag: {etag.format(n=n)}\n"
        file_at(connection, headers + (f"Last-Modified: {time.format(n=n)}\n" if time else ""))

    with raw_server(respond) as server:
        url = f"{server.url}/a.bin"
        (listed,) = once.list(url)
        if raises:
            with pytest.raises(StateError, match=r"was replaced.*Last-Modified"):
                once.read_range(listed, 0, len(DATA))
        else:
            assert once.read_range(listed, 0, len(DATA)) == DATA


# S3: refusals as AWS words them. Answers to HEAD have no body, so they never say why.


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("400 Bad Request", "ExpiredToken", "denied"),
        ("403 Forbidden", "InvalidAccessKeyId", "denied"),
    ],
)
def test_a_refusal_of_s3_is_shown_as_it_is_worded(
    tmp_path: Path, status: str, code: str, expected: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>Refused.</Message></Error>".encode()

    def respond(connection: Connection) -> None:
        connection.answer(status, "Content-Type: application/xml\n", body)

    with raw_server(respond) as server:
        options = {"key": "a", "secret": "b", "endpoint_url": server.url}
        storage = Storage(cache_dir=tmp_path, retries=5, storage_options=options)
        for act in (read, Storage.list):
            error = error_of(storage, "s3://bucket/a.bin", act)
            assert error.failure == expected
            assert "after 1 attempt:" in str(error)
            assert code in str(error)


def test_options_that_go_with_each_request_are_taken(tmp_path: Path) -> None:
    options = {"headers": {"X-Mine": "1"}, "cookies": {"a": "b"}, "block_size": 1024}
    with raw_server(file_at) as server:
        assert read(Storage(cache_dir=tmp_path, storage_options=options), f"{server.url}/a") == DATA
        assert all("X-Mine: 1" in head and "a=b" in head for head in server.requests)


def test_s3_without_credentials_names_the_missing_setting(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("a.bin", DATA)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {"endpoint_url": s3.endpoint}
    without = Storage(cache_dir=tmp_path / "c", retries=5, storage_options=options)
    for act in (read, Storage.list):
        error = error_of(without, url, act)
        assert error.failure == "denied"
        assert "after 1 attempt:" in str(error)
        assert '{"anon": True}' in error.remedy
    public = Storage(cache_dir=tmp_path / "c", storage_options={**options, "anon": True})
    s3.client.put_object_acl(Bucket=s3.bucket, Key="a.bin", ACL="public-read")
    assert read(public, url) == DATA


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server, tmp_path: Path) -> None:
    s3.client.create_bucket(Bucket="of-no-file")
    storage = Storage(cache_dir=tmp_path, storage_options={"endpoint_url": s3.endpoint})
    for pattern in ("a.bin", "*.bin", "folder/", ""):
        with pytest.raises(ConfigError) as caught:
            storage.list(f"s3://of-nobody/{pattern}")
        assert "bucket s3://of-nobody" in caught.value.fact
        with pytest.raises(ConfigError, match="No file") as caught:
            storage.list(f"s3://of-no-file/{pattern}")


def test_s3_that_is_not_there_is_a_refused_connection(tmp_path: Path) -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b"}
    storage = Storage(cache_dir=tmp_path, retries=0, storage_options=options)
    assert error_of(storage, "s3://bucket/a.bin", read).failure == "transient"
