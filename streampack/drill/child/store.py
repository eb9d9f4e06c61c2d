"""Requests of a process, and stores that refuse, throttle or delay them in a drill.

The drill names the fault in the file ``outage``; it holds for `OUTAGE_S` from the first request on.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from .watch import Watch

OUTAGE_S = 2.0  # seconds of a fault
LATE_S = 1.0  # by which a slow line delays each answer
RETRY_AFTER_S = 1
#: Statuses of a store that throttles, in turn.
STATUSES = (429, 503)
#: Module, class and method that send requests: of urllib, requests and boto; of fsspec; of the Hub.
REQUESTS = (
    ("http.client", "HTTPConnection", "putrequest"),
    ("aiohttp.client", "ClientSession", "_request"),
    ("httpx._client", "BaseClient", "build_request"),
)
#: Those that receive the head of an answer, which is their result or their object.
ANSWERS = (
    ("http.client", "HTTPConnection", "getresponse"),
    ("aiohttp.client_reqrep", "ClientResponse", "start"),
    ("httpx._client", "Client", "_send_single_request"),
    ("httpx._client", "AsyncClient", "_send_single_request"),
)


class Store:
    """Sees requests, and fails them in the drills of a store."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.requested = -1  # steps before the last request
        self.throttled = 0

    def fault(self, *kinds: str) -> str:
        """Return the store's fault if it holds and is one of some kinds, and note it; else ""."""
        try:
            fault = Path(f"{self.watch.events}/outage").read_text()
        except FileNotFoundError:
            return ""
        if fault not in kinds:
            return ""
        began = f"{self.watch.events}/failed"
        with open(began, "a"):
            pass
        if time.time() - os.stat(began).st_ctime >= OUTAGE_S:
            return ""
        self.watch.write("failed", fault=fault)
        return fault

    def before_request(self, module: str) -> None:
        """Note that a request is sent; raise the library's error if the store refuses it."""
        watch = self.watch
        if self.requested != watch.count:
            self.requested = watch.count
            watch.write("request", rank=watch.rank())
        if self.fault("refuse"):
            reason = "streampack drill refuses requests"
            if module == "httpx._client":
                raise sys.modules["httpx"].ConnectError(reason)
            if module == "aiohttp.client":
                raise sys.modules["aiohttp"].ClientOSError(errno.ECONNREFUSED, reason)
            raise ConnectionRefusedError(errno.ECONNREFUSED, reason)  # urllib3 drops resets

    def throttle(self, answer: Any) -> None:
        """Turn an answer into one of a store that throttles."""
        status = STATUSES[self.throttled % len(STATUSES)]
        self.throttled += 1
        for name in ("status", "code", "status_code"):
            if isinstance(getattr(answer, name, None), int):
                setattr(answer, name, status)
        try:
            answer.headers["Retry-After"] = str(RETRY_AFTER_S)
        except TypeError:  # aiohttp's are constant
            changed = sys.modules["multidict"].CIMultiDict(answer._headers)
            changed["Retry-After"] = str(RETRY_AFTER_S)
            answer._headers = sys.modules["multidict"].CIMultiDictProxy(changed)
            answer.__dict__.get("_cache", {}).pop("headers", None)

    def watch_client(self, module: str) -> None:
        """See requests and answers of a library."""
        for sender, method in [(s, m) for name, s, m in REQUESTS if name == module]:
            _wrap(module, sender, method, functools.partial(self._requesting, module))
        for receiver, method in [(r, m) for name, r, m in ANSWERS if name == module]:
            _wrap(module, receiver, method, self._answering)

    def _requesting(self, module: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.before_request(module)
            return original(*arguments, **named)

        return watched

    def _answering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            fault = self.fault("throttle", "delay")
            if fault == "delay":
                _be_late(*arguments)
            answer = original(*arguments, **named)
            if fault == "throttle":
                self.throttle(answer)
            return answer

        @functools.wraps(original)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            fault = self.fault("throttle", "delay")
            if fault == "delay":
                await sys.modules["asyncio"].sleep(LATE_S)  # the client's timeouts interrupt it
            answer = await original(*arguments, **named)
            if fault == "throttle":
                self.throttle(answer)
            return answer

        return awaited if iscoroutinefunction(original) else watched


def _wrap(
    module: str, owner: str, method: str, wrapper: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace a method of a class, if this version of the library has it."""
    kind = getattr(sys.modules[module], owner, None)
    if hasattr(kind, method):
        setattr(kind, method, wrapper(getattr(kind, method)))


def _be_late(connection: Any, request: Any = None) -> None:
    """Wait as for an answer over a slow line, up to the client's timeout."""
    if request is None:
        sock = getattr(connection, "sock", None)
        limit_s = None if sock is None else sock.gettimeout()
    else:
        limit_s = request.extensions.get("timeout", {}).get("read")
    if limit_s is None or limit_s > LATE_S:
        time.sleep(LATE_S)
        return
    time.sleep(limit_s)
    if request is None:
        raise TimeoutError("timed out")
    raise sys.modules["httpx"].ReadTimeout("The read operation timed out", request=request)
