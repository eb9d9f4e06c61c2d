"""Connections to servers, encrypted or not, and through proxies.

A thread waits for a server in steps of a fifth of a second. Between them it ends if its process
does, and gives up a server that is silent or slower than allowed.
"""

from __future__ import annotations

import base64
import errno
import http.client
import io
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from streampack.errors import ConfigError
from streampack.remote.failures import RefusedError, TooSlowError
from streampack.remote.pace import Pace
from streampack.threads import LOOK_S, end_with_process, pulse, start_daemon

HEAD_BYTES = 256 << 10  # received for the head of an answer, or for its end

_OTHER_ADDRESS_S = 3.0  # wait for one of several addresses of a host

#: Scheme, host and port of a server.
Origin = tuple[str, str, int]


class Line:
    """A connection to a server or proxy.

    Attributes:
        allowed: number of bytes to receive next, before which a server that goes on is given up.
    """

    def __init__(self, origin: Origin, sock: socket.socket, pace: Pace) -> None:
        self.origin, self.sock, self.pace, self.allowed = origin, sock, pace, HEAD_BYTES
        self.idle_since = 0.0
        self._began()

    def _began(self) -> None:
        self._spent_s, self._came = 0.0, 0

    def is_quiet(self) -> bool:
        """Return False if a connection without a request was closed, or something came."""
        return not _waits(self.sock, select.POLLIN, 0)

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._began()
        self.allowed = HEAD_BYTES
        self.sock.settimeout(self.pace.timeout_s)
        self.sock.sendall(data)
        self.sock.settimeout(min(LOOK_S, self.pace.timeout_s))

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return the stream of an answer; its end leaves the connection open."""
        return io.BufferedReader(_Incoming(self))

    def response(self, method: str) -> http.client.HTTPResponse:
        """Receive the head of the answer to a request."""
        response = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        response.begin()
        return response

    def receive(self, buffer: Any) -> int:
        """Receive bytes; raise `TooSlowError` for a server that is silent, or too slow."""
        pace, began = self.pace, time.monotonic()
        while True:
            try:
                size = self.sock.recv_into(buffer)
            except (TimeoutError, ssl.SSLWantReadError):
                end_with_process()
                quiet_s = time.monotonic() - began
                if quiet_s >= pace.timeout_s:
                    raise pace.too_slow(self._came, self._spent_s + quiet_s) from None
                continue
            if self._came or self._spent_s:  # not the wait for the first bytes, which has its limit
                self._spent_s += time.monotonic() - began
            self._came += size
            self.allowed -= size
            if self.allowed < 0:
                raise OSError("the head of an answer, or a part of its body, does not end")
            pulse().beat()
            if self._spent_s >= pace.timeout_s:
                if self._came < self._spent_s * pace.min_bytes_per_s:
                    raise pace.too_slow(self._came, self._spent_s)
                self._began()
            return size

    def close(self) -> None:
        self.sock.close()


class _Incoming(io.RawIOBase):
    def __init__(self, line: Line) -> None:
        self.readinto = line.receive  # type: ignore[method-assign,assignment]

    def readable(self) -> bool:
        return True


def connected(
    origin: Origin, proxy: str, pace: Pace, context: Callable[[], ssl.SSLContext]
) -> Line:
    """Connect to a server, through a proxy if it has a URL."""
    scheme, host, port = origin
    at = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
    if at is not None and at.scheme != "http":
        raise ConfigError(
            f"The proxy of {scheme}://{host} has the protocol {at.scheme}.",
            "Name one with http://, which also serves https:// URLs.",
            setting="storage_options",
        )
    sock = _opened(*((at.hostname or "", at.port or 80) if at else (host, port)), pace)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme == "https":
            if proxy:
                _tunnel(Line(origin, sock, pace), host, port, proxy)
            sock = _encrypted(sock, host, context(), pace)
        return Line(origin, sock, pace)
    except BaseException:
        sock.close()
        raise


def _encrypted(
    sock: socket.socket, host: str, context: ssl.SSLContext, pace: Pace
) -> ssl.SSLSocket:
    encrypted = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    encrypted.settimeout(min(LOOK_S, pace.timeout_s))

    def shake() -> bool:
        try:
            encrypted.do_handshake()
        except (TimeoutError, ssl.SSLWantReadError):
            return False
        return True

    _wait_until(shake, pace.timeout_s, "no handshake of TLS")
    return encrypted


def _wait_until(step: Callable[[], Any], limit_s: float, missing: str) -> None:
    """Call `step`, which waits a moment, until it returns True; give up after `limit_s`."""
    until = time.monotonic() + limit_s
    while not step():
        end_with_process()
        if time.monotonic() >= until:
            raise TooSlowError(f"{missing} after {limit_s:.3g} s")


def _waits(sock: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(seconds * 1000))


def _opened(host: str, port: int, pace: Pace) -> socket.socket:
    """Connect to the first address of a host that answers."""
    addresses = _addresses(host, port, pace.timeout_s)
    for k, (family, kind, protocol, _, address) in enumerate(addresses, start=1):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            failed = sock.connect_ex(address)
            if failed == errno.EINPROGRESS:
                limit_s = pace.timeout_s
                if k < len(addresses):
                    limit_s = min(limit_s, _OTHER_ADDRESS_S)
                opened = partial(_waits, sock, select.POLLOUT, min(LOOK_S, limit_s))
                _wait_until(opened, limit_s, f"no connection to {address[0]}")
                failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not failed:
                sock.settimeout(min(LOOK_S, pace.timeout_s))
                return sock
            raise OSError(failed, f"{os.strerror(failed)} by {address[0]} port {port}")
        except BaseException as error:
            sock.close()
            if k == len(addresses) or not isinstance(error, OSError):
                raise
    raise OSError(f"{host} has no address")


def _addresses(host: str, port: int, limit_s: float) -> list[Any]:
    """Look up a host, in a thread, since nothing interrupts that."""
    addresses: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            addresses.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except BaseException as error:  # raised by the caller
            addresses.set_exception(error)

    is_number = bool(re.fullmatch(r"[\d.]+|.*:.*", host))
    if is_number or start_daemon(ask, name="streampack-look-up") is None:
        ask()
    _wait_until(lambda: wait([addresses], timeout=LOOK_S).done, limit_s, f"no address of {host}")
    return addresses.result()


def _tunnel(line: Line, host: str, port: int, proxy: str) -> None:
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = {"Host": at, **proxy_headers(proxy)}
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    line.send(f"CONNECT {at} HTTP/1.1\r\n{text}\r\n".encode("latin-1"))
    response = line.response("CONNECT")
    if response.status != 200:
        words = f"the proxy answered {response.reason}"
        raise RefusedError(response.status, words, dict(response.headers.items()))


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers with the user and password of a proxy."""
    parts = urlsplit(proxy)
    named = basic(parts.username, parts.password)
    return {"Proxy-Authorization": named} if named else {}


def basic(user: str | None, password: str | None) -> str:
    """Return the header of user and password, as they stand in a URL; "" without a user."""
    if user is None:
        return ""
    text = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(text.encode()).decode()


def trusted(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext:
    """Return the certificates that are trusted; see `Wire`."""
    if isinstance(verify, ssl.SSLContext):
        return verify
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    named = verify if isinstance(verify, str) else None
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        named = named or os.environ.get(name)
    if named is None:
        return ssl.create_default_context()
    is_folder = os.path.isdir(named)
    return ssl.create_default_context(
        cafile=None if is_folder else named, capath=named if is_folder else None
    )
