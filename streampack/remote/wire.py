"""HTTP requests, in the thread that makes them.

A thread waits for a server in steps of a fifth of a second. Between them it ends if its process
does, and gives up a server that is silent or slower than allowed. A connection belongs to the
thread that uses it, and lies in a pool between requests. A `Wire` belongs to a process: a fork
makes its own, so it shares neither connections nor locks.
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
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from email.message import Message
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote, urljoin, urlsplit

from streampack.errors import ConfigError
from streampack.remote.failures import TooSlowError
from streampack.remote.first_fetch import first_fetch
from streampack.remote.pace import Pace
from streampack.threads import end_with_process, pulse, start_daemon

_STEP_S = 0.2
_OTHER_ADDRESS_S = 3.0  # wait for one of several addresses of a host
_IDLE_S = 15.0  # after which a server may have closed a connection
_MOST_IDLE = 32  # connections, as many as threads that fetch; more are to servers of single files
_MOST_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_PART_BYTES = 1 << 20
_WORDS_BYTES = 4096  # read of the body of a refusal
_HEAD_BYTES = 256 << 10  # received for the head of an answer, or for its end
_MOST_BYTES = 16 << 20  # received for a part of the body, which may come in small chunks
_DRAINED_BYTES = 65536  # read of an unused answer, to keep its connection
KEPT_IN_URL = "%/:=&?~+!$,;'@()*[]"
_SECRET = ("authorization", "cookie", "proxy-authorization", "x-amz-security-token")
_SIGNED_ANEW = "x-amz-bucket-region"  # in redirections of S3; a signature is for one host

Origin = tuple[str, str, int]


class Request(NamedTuple):
    """A request: URL, headers, and method."""

    url: str
    headers: dict[str, str]
    method: str = "GET"

    @property
    def origin(self) -> Origin:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        host = host if host.isascii() else host.encode("idna").decode()
        return parts.scheme, host, parts.port or _PORTS[parts.scheme]

    def moved(self, location: str) -> Request:
        """Return the request that follows a redirection; other servers get no credentials."""
        as_sent = quote(location.encode("latin-1"), safe=KEPT_IN_URL + "#")
        following = self._replace(url=urljoin(self.url, as_sent))
        if urlsplit(following.url).scheme not in _PORTS:
            raise ValueError(f"a redirection leads to {location.partition(':')[0]}:")
        host = self.origin[1]
        encrypted = (self.origin, following.origin) == (("http", host, 80), ("https", host, 443))
        if following.origin != self.origin and not encrypted:
            headers = {name: v for name, v in self.headers.items() if name.lower() not in _SECRET}
            following = following._replace(headers=headers)
        return following

    def head(self, proxy: str) -> bytes:
        """Return the bytes of the request; `proxy` is its URL, or ""."""
        scheme, host, port = self.origin
        parts = urlsplit(self.url)
        target = quote(parts.path or "/", safe=KEPT_IN_URL)
        target += f"?{quote(parts.query, safe=KEPT_IN_URL)}" if parts.query else ""
        shown = f"[{host}]" if ":" in host else host
        shown += "" if port == _PORTS[scheme] else f":{port}"
        headers = {"Host": shown, "Accept-Encoding": "identity", "User-Agent": "streampack"}
        headers |= self.headers
        if proxy and scheme == "http":
            target = f"{scheme}://{shown}{target}"
            headers |= _proxy_headers(proxy)
        if any(set("\r\n") & set(value) for value in headers.values()):
            raise ValueError("a header has a line end")
        text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {target} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


class RefusedError(OSError):
    """Raised for an answer that is a refusal.

    Attributes:
        status: its HTTP status.
        headers: its headers.
        store_code: the store's name for the reason, as "NoSuchKey".
    """

    def __init__(
        self, status: int, words: str, headers: dict[str, str] | None = None, code: str = ""
    ) -> None:
        super().__init__(f"{status} {words}")
        self.status, self.headers, self.store_code = status, headers or {}, code


class TooManyRedirectsError(OSError):
    """Raised for redirections in a circle."""


class Answer:
    """An answer, to be read within the context of `Wire.asked`.

    Attributes:
        status: HTTP status.
        headers: headers, and `earlier` has those of redirections before it.
        length: bytes of the body that are to come; None if unknown.
    """

    def __init__(
        self, response: http.client.HTTPResponse, earlier: list[Message], line: _Line
    ) -> None:
        self._response, self.earlier, self._line = response, earlier, line
        self.status, self.headers = response.status, response.headers

    @property
    def length(self) -> int | None:
        return self._response.length

    def fill(self, buffer: memoryview) -> int:
        """Read into a buffer until it is full or the body ends; return the number of bytes."""
        at = 0
        while at < len(buffer):
            self._line.allowed = _MOST_BYTES
            size = self._response.readinto(buffer[at : at + _PART_BYTES])
            if not size:
                break
            first_fetch().add(size)
            at += size
        return at

    def parts(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        self._line.allowed = _MOST_BYTES
        while data := self._response.read1(_PART_BYTES):
            first_fetch().add(len(data))
            yield data
            self._line.allowed = _MOST_BYTES

    def ends(self) -> bool:
        """Return True if the body has no more bytes."""
        self._line.allowed = _HEAD_BYTES
        return not (self.length or self._response.read(1))

    def refusal(self) -> RefusedError:
        """Return the error for this answer, with the server's own words."""
        text = self._response.read(_WORDS_BYTES).decode(errors="replace")
        code = "".join(re.findall(r"<Code>(.*?)</Code>", text)[:1])
        code = code or self.headers.get("x-ms-error-code") or self.headers.get("X-Error-Code") or ""
        words = re.findall(r'<Message>([^<]*)|"message":\s*"([^"]*)', text)
        message = next(("".join(each) for each in words), "")
        message = message or self.headers.get("X-Error-Message") or ""
        shown = ": ".join(filter(None, (self._response.reason, code, message)))
        return RefusedError(self.status, shown, dict(self.headers.items()), code)


class _Line:
    """A connection to a server or proxy.

    Attributes:
        allowed: number of bytes to receive next, before which a server that goes on is given up.
    """

    def __init__(self, origin: Origin, sock: socket.socket, pace: Pace) -> None:
        self.origin, self.sock, self.pace, self.allowed = origin, sock, pace, _HEAD_BYTES
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
        self.allowed = _HEAD_BYTES
        self.sock.settimeout(self.pace.timeout_s)
        self.sock.sendall(data)
        self.sock.settimeout(min(_STEP_S, self.pace.timeout_s))

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return the stream of an answer; its end leaves the connection open."""
        return io.BufferedReader(_Incoming(self))

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
    def __init__(self, line: _Line) -> None:
        self.readinto = line.receive  # type: ignore[method-assign,assignment]

    def readable(self) -> bool:
        return True


class Wire:
    """The connections of a process, with one kind of certificates and proxies.

    Args:
        pace: limits on slowness.
        verify: True for the certificates of the system, False for any; or a file or folder of
            certificates, or a context.
        proxy: URL of the proxy for all requests, "" for none; None takes the environment's proxies.
    """

    def __init__(
        self, pace: Pace, verify: bool | str | ssl.SSLContext = True, proxy: str | None = None
    ) -> None:
        self._pace, self._verify, self._proxy = pace, verify, proxy
        self._context: ssl.SSLContext | None = None
        self._proxies: dict[Origin, str] = {}
        self._idle: deque[_Line] = deque()  # the one used last is the last one

    @contextmanager
    def asked(self, request: Request) -> Iterator[Answer]:
        """Make a request, follow redirections, and enter a context with the answer."""
        earlier: list[Message] = []
        for _ in range(_MOST_REDIRECTS):
            line, response = self._answer(request)
            try:
                headers = response.headers
                location = headers.get("Location") if response.status in _REDIRECTS else None
                if location is None or _SIGNED_ANEW in headers:
                    yield Answer(response, earlier, line)
                    return
                if (response.length or _DRAINED_BYTES) < _DRAINED_BYTES:
                    response.read()
            finally:  # also after an error: a body that was not read to its end is left with it
                self._leave(line, response)
            earlier.append(headers)
            request = request.moved(location)
        raise TooManyRedirectsError(f"{_MOST_REDIRECTS} redirections follow one another")

    def _answer(self, request: Request) -> tuple[_Line, http.client.HTTPResponse]:
        origin = request.origin
        self._close_idle()
        proxy = self._proxy_of(origin)
        head = request.head(proxy)
        while True:
            line = self._idle_line(origin)
            is_new = line is None
            line = line or self._new_line(origin, proxy)
            try:
                line.send(head)
                return line, _begun(line, request.method)
            except ConnectionError:
                line.close()
                if is_new:
                    raise
            except BaseException:
                line.close()
                raise

    def _idle_line(self, origin: Origin) -> _Line | None:
        for line in reversed([*self._idle]):
            if line.origin == origin:
                with suppress(ValueError):  # another thread took it
                    self._idle.remove(line)
                    if line.is_quiet():
                        return line
                    line.close()
        return None

    def _leave(self, line: _Line, response: http.client.HTTPResponse) -> None:
        if response.length == 0:
            response.read()  # which closes an answer without a body, or read by `read1`
        if response.isclosed() and not response.will_close:
            line.idle_since = time.monotonic()
            self._idle.append(line)
        else:
            line.close()

    def _close_idle(self) -> None:
        """Close connections that their servers may have closed, and those above the limit."""
        with suppress(IndexError):  # another thread took it
            while (
                len(self._idle) > _MOST_IDLE
                or time.monotonic() - self._idle[0].idle_since >= _IDLE_S
            ):
                self._idle.popleft().close()

    def _proxy_of(self, origin: Origin) -> str:
        if self._proxy is not None:
            return self._proxy
        if origin not in self._proxies:
            from urllib.request import getproxies, proxy_bypass

            scheme, host, port = origin
            bypassed = proxy_bypass(f"{host}:{port}")
            self._proxies[origin] = "" if bypassed else getproxies().get(scheme, "")
        return self._proxies[origin]

    def _new_line(self, origin: Origin, proxy: str) -> _Line:
        scheme, host, port = origin
        at = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        if at is not None and at.scheme != "http":
            raise ConfigError(
                f"The proxy of {scheme}://{host} has the protocol {at.scheme}.",
                "Name one with http://, which also serves https:// URLs.",
                setting="storage_options",
            )
        sock = _connected(*((at.hostname or "", at.port or 80) if at else (host, port)), self._pace)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if scheme == "https":
                if proxy:
                    _tunnel(_Line(origin, sock, self._pace), host, port, proxy)
                sock = self._encrypted(sock, host)
            return _Line(origin, sock, self._pace)
        except BaseException:
            sock.close()
            raise

    def _encrypted(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        if self._context is None:
            self._context = _context(self._verify)
        encrypted = self._context.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )
        encrypted.settimeout(min(_STEP_S, self._pace.timeout_s))

        def shake() -> bool:
            try:
                encrypted.do_handshake()
            except (TimeoutError, ssl.SSLWantReadError):
                return False
            return True

        _wait_until(shake, self._pace.timeout_s, "no handshake of TLS")
        return encrypted


def _begun(line: _Line, method: str) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(cast(socket.socket, line), method=method)
    response.begin()
    return response


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


def _connected(host: str, port: int, pace: Pace) -> socket.socket:
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
                opened = partial(_waits, sock, select.POLLOUT, min(_STEP_S, limit_s))
                _wait_until(opened, limit_s, f"no connection to {address[0]}")
                failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not failed:
                sock.settimeout(min(_STEP_S, pace.timeout_s))
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
    _wait_until(lambda: wait([addresses], timeout=_STEP_S).done, limit_s, f"no address of {host}")
    return addresses.result()


def _tunnel(line: _Line, host: str, port: int, proxy: str) -> None:
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = {"Host": at, **_proxy_headers(proxy)}
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    line.send(f"CONNECT {at} HTTP/1.1\r\n{text}\r\n".encode("latin-1"))
    response = _begun(line, "CONNECT")
    if response.status != 200:
        words = f"the proxy answered {response.reason}"
        raise RefusedError(response.status, words, dict(response.headers.items()))


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    named = basic(parts.username, parts.password)
    return {"Proxy-Authorization": named} if named else {}


def basic(user: str | None, password: str | None) -> str:
    """Return the header of user and password, as they stand in a URL; "" without a user."""
    if user is None:
        return ""
    text = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(text.encode()).decode()


def _context(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext:
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
