"""A process that trains ends at once in every state of a store of any kind."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.ends import ENDS, FILES, STATES, State, leave, shard
from tests.support.forked import Host
from tests.support.raw_server import Connection
from tests.support.stores import Store

#: Headers of one connection alone.
_OF_CONNECTION = {"connection", "content-length", "keep-alive", "transfer-encoding"}


def forwarded(connection: Connection, address: str) -> None:
    """Answer a request as the server at an address does."""
    client = HTTPConnection(address, timeout=60)
    lines = (line.partition(": ") for line in connection.head.split("\r\n")[1:])
    headers = {name: value for name, _, value in lines}
    headers["Connection"] = "close"
    client.request(connection.method, connection.path, connection.body() or None, headers)
    answer = client.getresponse()
    body = answer.read()
    kept = [(name, value) for name, value in answer.getheaders()]
    length = next((v for name, v in kept if name.lower() == "content-length"), str(len(body)))
    head = [f"{name}: {value}\n" for name, value in kept if name.lower() not in _OF_CONNECTION]
    connection.answer(
        f"{answer.status} {answer.reason}", "".join(head) + f"Content-Length: {length}\n", body
    )
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_in_every_state_of_every_store(
    store: Store, state: State, end: str, host: Host, tmp_path: Path
) -> None:
    data = shard()
    for name in FILES:
        store.write(f"ends/{name}", data)
    address = urlsplit(store.endpoint).netloc

    def at(url: str) -> tuple[str, dict[str, Any]]:
        options = json.dumps(store.options).replace(address, urlsplit(url).netloc)
        return f"{store.root}/ends", json.loads(options)

    leave(state, end, 0, host, tmp_path, lambda asked: forwarded(asked, address), at)
