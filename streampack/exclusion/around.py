"""AroundStream: a stream that passes everything on to the stream that it is put around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.streams.base import LaneStream, Remaining, StreamPosition
from streampack.window.packed_rows import PackedRows


class AroundStream(LaneStream):
    """The documents of another stream; see `LaneStream`.

    Args:
        inner: the stream.
    """

    def __init__(self, inner: LaneStream) -> None:
        self.inner, self.skips, self.serial = inner, inner.skips, inner.serial

    def peek(self) -> Documents | None:
        return self.inner.peek()

    def serials(self, count: int) -> NDArray[np.int64]:
        return self.inner.serials(count)

    def consume(self, count: int) -> None:
        self.inner.consume(count)
        self.serial = self.inner.serial

    @property
    def ended(self) -> bool:
        return self.inner.ended

    @property
    def epoch(self) -> int:
        """Epoch of the documents that are read next."""
        return getattr(self.inner, "epoch", 0)

    def begin_round(self, step: int, *, again: bool = False) -> None:
        self.inner.begin_round(step, again=again)

    def remaining(self) -> list[Remaining]:
        return self.inner.remaining()

    def completed(self, batches: list[PackedRows]) -> list[PackedRows]:
        return self.inner.completed(batches)

    def position_before(self, serial: int) -> StreamPosition:
        return self.inner.position_before(serial)

    def _next_documents(self) -> Documents | None:
        return self.inner.peek()
