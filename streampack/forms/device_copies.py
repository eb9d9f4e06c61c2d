"""DeviceCopies: copy the batches of a loop to its device, one ahead of the loop."""

from __future__ import annotations

import torch

from streampack.batch import PackedBatch


class DeviceCopies:
    """Copies batches to a device, the next one ahead of time.

    On a CUDA device the copy runs from a page-locked buffer on a separate stream, and the loop's
    stream waits for it; the host never waits.

    Args:
        device: device that receives the batches.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.empty(0, device=device).device
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]
        self._started: tuple[PackedBatch, PackedBatch] | None = None

    def start(self, batch: PackedBatch) -> None:
        """Begin to copy a batch, for a later call of `take`."""
        if self._started is None or self._started[0] is not batch:
            self._started = (batch, self._copy(batch))

    def take(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch on the device, ready for work on the current stream."""
        self.start(batch)
        assert self._started is not None
        (_, copied), self._started = self._started, None
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            copied.record_stream(current)
        return copied

    def _copy(self, batch: PackedBatch) -> PackedBatch:
        if self._stream is None:
            return batch.to(self.device)
        with torch.cuda.stream(self._stream):
            return batch.pin_memory().to(self.device, non_blocking=True)
