"""A server in the place of Amazon's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from streampack.remote.clients import S3Client, client_of
from streampack.remote.pace import Pace
from tests.support.raw_server import Connection, RawServer, raw_server

__all__ = ["amazon"]


@contextmanager
def amazon(
    respond: Callable[[Connection], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[S3Client, RawServer]]:
    """Serve all hosts of S3, as a proxy; `respond` is called for each request."""
    for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    options = {"key": "a", "secret": "b", "use_ssl": False}
    with raw_server(respond) as server:
        client = client_of("s3", options, Pace(20.0, 0), lambda: None)
        assert isinstance(client, S3Client)
        client.wire._proxy = server.url
        yield client, server
