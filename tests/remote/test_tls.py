"""Encrypted connections: an authority of one's own, and a proxy that passes bytes on."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from streampack.errors import StorageError
from streampack.storage.storage import Storage

DATA = os.urandom(600_000)
HOST = "data.test"  # of the certificate, besides 127.0.0.1

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and server.pem with server.key signed by it."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST},IP:127.0.0.1\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=own",
         "-addext", "keyUsage=critical,keyCertSign", "-days", "2"],
        ["req", *key, "-keyout", "server.key", "-out", "request.pem", "-subj", f"/CN={HOST}"],
        ["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key",
         "-CAcreateserial", "-out", "server.pem", "-days", "2", "-extfile", "names"],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder


class Ranges(BaseHTTPRequestHandler):
    """Answers with ranges of `DATA`."""

    protocol_version = "HTTP/1.1"
    heads: ClassVar[list[str]] = []

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(200, DATA, b"")

    def do_GET(self) -> None:
        first, last = map(int, re.findall(r"bytes=(\d+)-(\d+)", self.headers["Range"])[0])
        self.heads.append(str(self.headers))
        self._answer(206, DATA[first : last + 1], DATA[first : last + 1], first)

    def _answer(self, status: int, length: bytes, body: bytes, first: int = 0) -> None:
        self.send_response(status)
        self.send_header("ETag", '"a"')
        self.send_header("Content-Length", str(len(length)))
        last = first + len(body) - 1
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def port(certificates: Path) -> Iterator[int]:
    """Port of an encrypted server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    Ranges.heads.clear()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@contextmanager
def proxy_to(port: int) -> Iterator[tuple[str, list[str]]]:
    """A proxy that connects all to a port of this machine: its address, and requests so far."""
    listening, heads = socket.create_server(("127.0.0.1", 0)), list[str]()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += client.recv(1)
                heads.append(head.decode())
                server = socket.create_connection(("127.0.0.1", port))
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listening.getsockname()[1]}", heads
    listening.close()


def read(folder: Path, url: str, **options: object) -> bytes:
    storage = Storage(cache_dir=folder / "cache", retries=5, storage_options=options)
    with storage.open(url) as file:
        return file.read(0, file.num_bytes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("named", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "ssl"])
def test_a_server_with_a_certificate_of_an_own_authority_is_read(
    port: int, certificates: Path, tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(certificates / "ca.pem")
    if named == "ssl":
        options: dict[str, object] = {"ssl": ssl.create_default_context(cafile=authority)}
    else:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv(named, authority)
        options = {}
    assert read(tmp_path, f"https://127.0.0.1:{port}/a.bin", **options) == DATA


def test_a_server_with_an_unknown_certificate_is_refused_at_once(port: int, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        read(tmp_path, f"https://127.0.0.1:{port}/a.bin")
    assert caught.value.failure == "other"
    assert "after 1 attempt:" in str(caught.value)
    assert read(tmp_path, f"https://127.0.0.1:{port}/a.bin", ssl=False) == DATA


def test_a_proxy_tunnels_an_encrypted_connection_and_sees_nothing_of_it(
    port: int, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    with proxy_to(port) as (proxy, heads):
        options = {"proxy": f"http://me:pw@{proxy}", "headers": {"X-Mine": "1"}}
        assert read(tmp_path, f"https://{HOST}/a.bin", **options) == DATA
        assert all(head.startswith(f"CONNECT {HOST}:443 HTTP/1.1\r\n") for head in heads)
        assert all("Proxy-Authorization: Basic" in head for head in heads)
        assert not any("X-Mine" in head for head in heads)
        assert Ranges.heads
        assert all("X-Mine: 1" in head and "Proxy" not in head for head in Ranges.heads)
        with pytest.raises(StorageError) as caught:  # the certificate names another host
            read(tmp_path, "https://other.test/a.bin", **options)
        assert caught.value.failure == "other"
