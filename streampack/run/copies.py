"""DeviceCopies: batches reach a device while the loop computes on the one before."""

from __future__ import annotations

import torch

from streampack.batch import PackedBatch
from streampack.errors import ConfigError


class DeviceCopies:
    """Copies batches to a device, the next one ahead of time.

    On a CUDA device the copy goes from a page-locked buffer on a separate stream, and the loop's
    stream waits for it there; the host never waits.

    Args:
        device: where the batches go.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = _usable(device)
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]
        self._started: tuple[PackedBatch, PackedBatch] | None = None

    def start(self, batch: PackedBatch) -> None:
        """Begin to copy a batch; `take` will ask for it."""
        if self._started is None or self._started[0] is not batch:
            self._started = (batch, self._copy(batch))

    def take(self, batch: PackedBatch) -> PackedBatch:
        """The batch on the device, for work on the current stream."""
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


def _usable(device: torch.device | str) -> torch.device:
    """The device by its name; raises `ConfigError` if torch cannot put a tensor there."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [repr(error)]
        reason = lines[0].split(". ")[0].rstrip(".")  # torch may go on to list all it was built of
        raise ConfigError(
            f"device is {device!r}, and torch says: {reason}.",
            "No batch can be copied there.",
            'Use a device that this process has, for example "cpu" or "cuda:0".',
        ) from error
