"""Clients see a store that refuses, throttles or is late, as the drill wants it."""

from __future__ import annotations

import asyncio
import http.server
import importlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streampack.drill.child import store
from streampack.drill.child.store import ANSWERS, REQUESTS, Store
from streampack.drill.child.watch import Watch

Answer = tuple[int, str | None]  # status and Retry-After


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers at once."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def of_urllib(url: str, timeout_s: float) -> Answer:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.headers["Retry-After"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Retry-After"]


def of_requests(url: str, timeout_s: float) -> Answer:
    import requests

    answer = requests.get(url, timeout=timeout_s)
    return answer.status_code, answer.headers.get("Retry-After")


def of_httpx(url: str, timeout_s: float) -> Answer:
    import httpx

    answer = httpx.get(url, timeout=timeout_s)
    return answer.status_code, answer.headers.get("Retry-After")


def of_aiohttp(url: str, timeout_s: float) -> Answer:
    import aiohttp

    async def get() -> Answer:
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as answer:
            return answer.status, answer.headers.get("Retry-After")

    return asyncio.run(get())


CLIENTS = {
    "http.client": (of_urllib, of_requests),
    "httpx._client": (of_httpx,),
    "aiohttp": (of_aiohttp,),
}


@pytest.mark.parametrize(
    ("library", "get"),
    [(library, client) for library, clients in CLIENTS.items() for client in clients],
)
def test_clients_see_the_fault_of_the_store_and_then_the_store(
    library: str,
    get: Callable[[str, float], Answer],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(library.partition(".")[0])
    monkeypatch.setattr(store, "LATE_S", 0.2)
    watched = Store(Watch({"events": str(tmp_path), "drill": 0, "moment": {}}))
    for module, owner, method in {*REQUESTS, *ANSWERS}:
        if module.startswith(library):
            kind = getattr(importlib.import_module(module), owner)
            monkeypatch.setattr(kind, method, getattr(kind, method))  # restored after the test
    for module in {module for module, _, _ in (*REQUESTS, *ANSWERS) if module.startswith(library)}:
        watched.watch_client(module)
    outage = tmp_path / "outage"
    assert get(url, 60) == (200, None)
    outage.write_text("throttle")
    assert [get(url, 60), get(url, 60)] == [(429, "1"), (503, "1")]
    outage.write_text("delay")
    began = time.monotonic()
    assert get(url, 60) == (200, None)
    assert time.monotonic() - began >= 0.2
    with pytest.raises(Exception, match=r"(?i)time|^$"):  # each client has an error of its own
        get(url, 0.1)
    outage.write_text("refuse")
    with pytest.raises(Exception, match=r"(?i)refuses"):
        get(url, 60)
    monkeypatch.setattr(store, "OUTAGE_S", 0.0)
    assert get(url, 60) == (200, None)
