"""Receiver: a thread of the loop's process that takes a worker's batches ahead of the loop.

Receiving a batch and making its per-token fields take a few milliseconds where batches are large,
and hold the interpreter lock for a small part of that: reading from the pipe and the compiled pass
that writes the fields do without. So both happen while the loop computes, and the loop waits for a
batch no longer than it takes to hand over a reference.

Fields are made ahead only for a loop that uses them: copies to a device start from the compact
form, and their fields are made there.
"""

from __future__ import annotations

import queue
import threading

from streampack.batch import PackedBatch
from streampack.lane.batch import LaneEnd, SavedRound
from streampack.workers.worker import Message
from streampack.workers.worker_handle import WorkerHandle

AHEAD = 2  # batches held with their fields; the worker has made more, in compact form


class Receiver:
    """Takes one worker's messages ahead, in order, and turns them into batches.

    Args:
        worker: whose messages; nobody else receives from it.
        wants_fields: set once the loop has asked for per-token fields on the host; shared by all
            receivers of a loop.
    """

    def __init__(self, worker: WorkerHandle, wants_fields: threading.Event) -> None:
        self._worker = worker
        self._wants_fields = wants_fields
        self._rounds: dict[int, SavedRound] = {}
        self._received: queue.SimpleQueue[PackedBatch | LaneEnd | BaseException]
        self._received = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._stopped = False
        # A thread that hangs must not keep the interpreter from ending.
        self._thread = threading.Thread(
            target=self._run, name=f"streampack-receiver-{worker.number}", daemon=True
        )
        self._thread.start()

    def receive(self, timeout_s: float | None) -> PackedBatch | LaneEnd:
        """The next batch, or the end of a lane that has none.

        Raises:
            WorkerError: the process died, or gave nothing for `timeout_s` seconds.
            Exception: what a lane raised there.
        """
        if not self._worker.is_ours:
            raise self._worker.of_parent()
        try:
            received = self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise self._worker.timed_out(timeout_s) from None
        if isinstance(received, BaseException):
            raise received
        self._room.release()
        return received

    def stop(self) -> None:
        """End the process, and the thread with it."""
        self._stopped = True
        self._room.release()
        self._worker.end_process()
        self._thread.join(5)
        self._worker.close()

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._stopped:
                    return
                self._received.put(self._opened(self._worker.receive()))
        except BaseException as error:  # the loop raises it where it asks for the batch
            if not self._stopped:  # or it and its frames would keep this object alive
                self._received.put(error)

    def _opened(self, message: Message) -> PackedBatch | LaneEnd:
        item, start = message
        if start is not None:
            self._rounds[item.lane] = SavedRound(start)
        item = item._replace(round=self._rounds[item.lane])
        if isinstance(item, LaneEnd):
            return item
        batch = PackedBatch.of_lane(item, on_fields=self._wants_fields.set)
        if self._wants_fields.is_set():
            batch.make_fields()
        return batch
