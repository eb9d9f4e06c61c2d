"""The loop's side of a worker process: start it, receive what it sends, end it.

Receiving a batch and making its per-token fields take a few milliseconds where batches are large,
and hold the interpreter lock for a small part of that: reading from the pipe and the compiled pass
that writes the fields do without. So a thread does both while the loop computes, and the loop waits
for a batch no longer than it takes to hand over a reference.

Fields are made ahead only for a loop that uses them: copies to a device start from the compact
form, and their fields are made there.
"""

from __future__ import annotations

import fcntl
import multiprocessing.process
import os
import pickle
import queue
import signal
import threading
import weakref
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from streampack.batch import PackedBatch
from streampack.errors import ConfigError, StreampackError, WorkerError
from streampack.lane.batch import LaneBatch, LaneEnd
from streampack.lane.config import LaneShare
from streampack.lane.sharing import Sharing
from streampack.workers import fork_server
from streampack.workers.fork_server import WORKER_NAME
from streampack.workers.worker import LOOP_SIGNALS, Failed, Message, held_back, run_worker

AHEAD = 2  # batches held with their fields; the worker has made more, in compact form
PIPE_BYTES = 1 << 20  # what an unprivileged process may ask for on Linux; batches fit in it
_BYTES_PER_TOKEN = 8  # of a batch on its way, generously

#: What waits until a worker has its handlers. One that is spawned loads for seconds, and may be
#: terminated meanwhile; a fork server would give to its other children what is held back from it.
HELD_BACK = {"fork": LOOP_SIGNALS, "spawn": (signal.SIGINT,), "forkserver": ()}

_started: weakref.WeakSet[WorkerHandle] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the workers are the parent's, which the child must not end.

    At its exit multiprocessing would end all daemons that it knows, and the garbage collector the
    loops that have them.
    """
    known: set[object] = getattr(multiprocessing.process, "_children", set())
    for worker in list(_started):
        worker.is_ours = False
        known.discard(worker.process)


os.register_at_fork(after_in_child=_leave_to_parent)


def _before_spawning(method: str) -> None:
    """Standard streams that are closed become /dev/null, which Python cannot spawn without.

    Python's own helpers are started first: the resource tracker where it needs no signal held back,
    which it would let through, and the fork server where a Ctrl-C cannot end it while it loads.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    resource_tracker.ensure_running()
    if method == "forkserver":
        server: Any = forkserver._forkserver
        preload = server._preload_modules
        server._preload_modules = [*preload, fork_server.__name__]
        try:
            with held_back((signal.SIGINT,)):
                server.ensure_running()
        finally:
            server._preload_modules = preload


class WorkerHandle:
    """The loop's side of one worker process.

    Args:
        number: of the worker in its rank.
        share, sharing, prefetch_batches: see `run_worker`.
        context: of multiprocessing.
        inherited: the loop's ends of other workers' pipes, which a forked child must not keep.

    Raises:
        ConfigError: the dataset cannot be sent to a process that is not forked.
    """

    def __init__(
        self,
        number: int,
        share: LaneShare,
        sharing: Sharing,
        context: Any,
        prefetch_batches: int,
        inherited: list[Connection],
    ) -> None:
        self.number = number
        self.is_ours = True  # False in a child that the loop's process forks
        self._lanes = list(share.states)
        method = context.get_start_method()
        if method != "fork":
            _before_spawning(method)
        self.receiver, sender = context.Pipe(duplex=False)
        # Room for the batches to be made ahead and not for many more: what a worker has sent is
        # memory held, and a dead worker is noticed only after it.
        _widen(
            sender, min(PIPE_BYTES, prefetch_batches * share.config.batch_tokens * _BYTES_PER_TOKEN)
        )
        inherited = [*inherited, self.receiver]
        forked = method == "fork"
        self.process = context.Process(
            target=run_worker,
            args=(share, sharing, prefetch_batches, sender, inherited if forked else []),
            name=f"{WORKER_NAME}-{number}",
            daemon=True,
        )
        try:
            with held_back(HELD_BACK[method]):
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.receiver.close()
            raise ConfigError(
                f"The dataset cannot be sent to a worker process: {error}.",
                f"Processes started by {method} get it pickled.",
                'Define hooks and factories at the top level of a module, or use "fork".',
            ) from error
        finally:
            sender.close()  # the worker's death then ends the pipe
        self._received: queue.SimpleQueue[PackedBatch | LaneEnd | BaseException]
        self._received = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._stopped = False
        self._thread: threading.Thread | None = None
        _started.add(self)

    def start_receiving(self, wants_fields: threading.Event) -> None:
        """Take messages ahead from now on, in order, in a thread.

        Args:
            wants_fields: set once the loop has asked for per-token fields on the host; shared by
                all workers of a loop.
        """
        # A thread that hangs must not keep the interpreter from ending.
        name = f"streampack-receiver-{self.number}"
        self._thread = threading.Thread(
            target=self._run, args=(wants_fields,), name=name, daemon=True
        )
        self._thread.start()

    def receive(self, timeout_s: float | None) -> PackedBatch | LaneEnd:
        """The next batch, or the end of a lane that has none.

        Raises:
            WorkerError: the process died, or gave nothing for `timeout_s` seconds.
            Exception: what a lane raised there.
        """
        if not self.is_ours:
            raise WorkerError(
                f"This process was forked inside a loop whose worker {self.number} is its "
                "parent's.",
                "Only the parent gets its batches.",
                "Let the child leave the loop, or iterate its own loader.",
            )
        try:
            received = self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise WorkerError(
                f"{self} gave nothing for {timeout_s} s.",
                "The loop would wait for ever.",
                "Look at storage and tokenizer, or raise timeout_s.",
            ) from None
        if isinstance(received, BaseException):
            raise received
        self._room.release()
        return received

    def stop(self) -> None:
        """End the process, even if it is blocked on a full pipe or in I/O, and the thread."""
        self._stopped = True
        self._room.release()
        if self.is_ours:
            self.process.terminate()
            self.process.join(5)
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join()
        if self._thread is not None:
            self._thread.join(5)
        self.receiver.close()
        if self.is_ours:
            with suppress(ValueError):  # where SIGCHLD is ignored, nobody can know that it ended
                self.process.close()

    def _run(self, wants_fields: threading.Event) -> None:
        try:
            while True:
                self._room.acquire()
                if self._stopped:
                    return
                item = self._next_item()
                if isinstance(item, LaneEnd):
                    self._received.put(item)
                    continue
                batch = PackedBatch.of_lane(item, on_fields=wants_fields.set)
                if wants_fields.is_set():
                    batch.make_fields()
                self._received.put(batch)
        except BaseException as error:  # the loop raises it where it asks for the batch
            if not self._stopped:  # or it and its frames would keep this object alive
                self._received.put(error)

    def _next_item(self) -> LaneBatch | LaneEnd:
        ready = wait([self.receiver, self.process.sentinel])
        if self.receiver not in ready and not self.receiver.poll():
            raise self._died()  # even if a process of the worker's own still holds the pipe
        try:
            message: Message = pickle.loads(self.receiver.recv_bytes())  # noqa: S301
        except (EOFError, OSError):  # at the end of a message, or inside one
            raise self._died() from None
        if isinstance(message, Failed):
            raise _as_raised(message, self.number)
        return message

    def __str__(self) -> str:
        lanes = ", ".join(map(str, self._lanes))
        return f"Worker {self.number} (process {self.process.pid}, lanes {lanes})"

    def _died(self) -> WorkerError:
        self.process.join(5)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"exited with code {code}"
        if code is None:  # where SIGCHLD is ignored, nobody can know how
            how = "ended"
        return WorkerError(
            f"{self} {how}.",
            "Batches it had made ahead are gone; none that the loop got is affected.",
            "Iterate the loader again to go on after the last batch, or resume from a saved "
            "state. If the system killed it, look at the memory of the machine.",
        )


def _as_raised(failed: Failed, number: int) -> BaseException:
    """The worker's own error, or one in its place, with the worker's traceback as its cause."""
    cause = WorkerError(f"In worker {number}:\n{failed.traceback}")
    error = failed.error
    if not isinstance(error, Exception):
        error = WorkerError(
            f"Worker {number} failed.",
            "Its lanes cannot go on.",
            "The cause above names the place.",
        )
    if isinstance(error, StreampackError) or error.__cause__ is None:
        error.__cause__ = cause
    return error


def _widen(connection: Connection, num_bytes: int) -> None:
    """Give the pipe room for batches, so that the worker need not wait while the loop computes."""
    try:
        fcntl.fcntl(connection.fileno(), getattr(fcntl, "F_SETPIPE_SZ", 1031), num_bytes)
    except OSError:
        pass  # not Linux, or over the user's quota for pipes: slower, not wrong
