"""HTTP requests, in the thread that makes them.

A connection belongs to the thread that uses it, and lies in a pool between requests. A `Wire`
belongs to a process: a fork makes its own, so it shares neither connections nor locks.
"""

from __future__ import annotations

import re
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.client import HTTPResponse
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from streampack.remote.connections import (
    HEAD_BYTES,
    Line,
    Origin,
    connected,
    proxy_headers,
    trusted,
)
from streampack.remote.failures import RefusedError
from streampack.remote.first_fetch import first_fetch
from streampack.remote.pace import Pace

_IDLE_S = 15.0  # after which a server may have closed a connection
_MOST_IDLE = 32  # connections, as many as threads that fetch; more are to servers of single files
_MOST_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_PART_BYTES = 1 << 20
_WORDS_BYTES = 4096  # read of the body of a refusal
_MOST_BYTES = 16 << 20  # received for a part of the body, which may come in small chunks
_DRAINED_BYTES = 65536  # read of an unused answer, to keep its connection
KEPT_IN_URL = "%/:=&?~+!$,;'@()*[]"
_SECRET = ("authorization", "cookie", "proxy-authorization", "x-amz-security-token")
_SIGNED_ANEW = "x-amz-bucket-region"  # in redirections of S3; a signature is for one host


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
            headers |= proxy_headers(proxy)
        if any(set("\r\n") & set(value) for value in headers.values()):
            raise ValueError("a header has a line end")
        text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {target} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


class TooManyRedirectsError(OSError):
    """Raised for redirections in a circle."""


class Answer:
    """An answer, to be read within the context of `Wire.asked`.

    Attributes:
        status: HTTP status.
        headers: headers, and `earlier` has those of redirections before it.
        length: bytes of the body that are to come; None if unknown.
    """

    def __init__(self, response: HTTPResponse, earlier: list[Message], line: Line) -> None:
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
        self._line.allowed = HEAD_BYTES
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
        self._idle: deque[Line] = deque()  # the one used last is the last one

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

    def _answer(self, request: Request) -> tuple[Line, HTTPResponse]:
        origin = request.origin
        self._close_idle()
        proxy = self._proxy_of(origin)
        head = request.head(proxy)
        while True:
            line = self._idle_line(origin)
            is_new = line is None
            line = line or connected(origin, proxy, self._pace, self._trusted)
            try:
                line.send(head)
                return line, line.response(request.method)
            except ConnectionError:
                line.close()
                if is_new:
                    raise
            except BaseException:
                line.close()
                raise

    def _idle_line(self, origin: Origin) -> Line | None:
        for line in reversed([*self._idle]):
            if line.origin == origin:
                with suppress(ValueError):  # another thread took it
                    self._idle.remove(line)
                    if line.is_quiet():
                        return line
                    line.close()
        return None

    def _leave(self, line: Line, response: HTTPResponse) -> None:
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

    def _trusted(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = trusted(self._verify)
        return self._context
