"""A server on loopback with answers written byte by byte, as no proper server would."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["Connection", "RawServer", "raw_server"]


@dataclass(frozen=True)
class Connection:
    """A client that has sent a request.

    Attributes:
        head: the request up to its body, as text.
        stopping: set when the server ends; an answer that goes on for ever must look at it.
    """

    head: str
    stopping: threading.Event
    _socket: socket.socket
    _begun: bytes = b""

    @property
    def method(self) -> str:
        return self.head.split()[0]

    @property
    def path(self) -> str:
        return self.head.split()[1]

    def body(self) -> bytes:
        """The body of the request."""
        length = re.search(r"(?im)^content-length: (\d+)", self.head)
        data = self._begun
        while length and len(data) < int(length[1]):
            part = self._socket.recv(65536)
            if not part:
                raise ConnectionError("the client closed before the end of its request")
            data += part
        return data

    def send(self, data: str | bytes) -> None:
        """Send bytes, or text with line ends as HTTP requires."""
        if isinstance(data, str):
            data = data.replace("\n", "\r\n").encode("latin-1")
        self._socket.sendall(data)

    def answer(self, status: str, headers: str = "", body: bytes = b"") -> None:
        """A whole answer; the connection is closed after it."""
        length = "" if "ontent-Length" in headers else f"Content-Length: {len(body)}\n"
        self.send(f"HTTP/1.1 {status}\n{length}Connection: close\n{headers}\n")
        if self.method != "HEAD":
            self.send(body)

    def drip(self, data: bytes, wait_s: float) -> None:
        """Send `data` over and over, one byte at a time, until the client or the server ends."""
        while not self.stopping.is_set():
            for byte in data:
                self.send(bytes([byte]))
                if self.stopping.wait(wait_s):
                    return


@dataclass
class RawServer:
    """A running server; `requests` are the heads of its requests, in order."""

    url: str
    requests: list[str] = field(default_factory=list)


@contextmanager
def raw_server(
    respond: Callable[[Connection], None], host: str = "127.0.0.1"
) -> Iterator[RawServer]:
    """Serve on a free port of `host`; `respond` is called for each request, in a thread."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    named = f"[{host}]" if ":" in host else host
    server = RawServer(f"http://{named}:{listening.getsockname()[1]}")
    stopping = threading.Event()
    threads: list[threading.Thread] = []

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(30)
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data:
                    return
                head += data
            text, _, begun = head.partition(b"\r\n\r\n")
            server.requests.append(text.decode("latin-1"))
            respond(Connection(text.decode("latin-1"), stopping, client, begun))

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(client,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        stopping.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()
        for thread in threads:
            thread.join()
