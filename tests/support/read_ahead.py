"""Blocks that a server was asked for, and the end of reading ahead."""

from __future__ import annotations

import threading

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.growing import THREAD_NAME
from tests.support.servers import HTTPServer

WAIT_S = 60.0


def fetched_blocks(http: HTTPServer) -> list[int]:
    """Indices of the blocks that were asked for, sorted."""
    found: list[int] = []
    for request in http.requests:
        if request.range:
            first, last = map(int, request.range.removeprefix("bytes=").split("-"))
            found += range(first // BLOCK_BYTES, last // BLOCK_BYTES + 1)
    return sorted(found)


def settle() -> None:
    """Wait until nothing is fetched ahead, and no content is made."""
    names = ("streampack-read-ahead", THREAD_NAME)
    while ahead := [t for t in threading.enumerate() if t.name in names]:
        ahead[0].join(WAIT_S)
