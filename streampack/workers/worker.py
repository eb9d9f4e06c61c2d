"""A worker process of `PackedLoader`: runs some of a rank's lanes and sends their batches.

Batches go through one pipe per worker in their compact form, so nothing of a batch lies in shared
memory that a killed process could leave over. Few bytes travel (2 or 4 per token); the per-token
fields are made by the loop's process.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from streampack.lane.batch import LaneBatch, LaneEnd, SavedRound
from streampack.lane.config import LaneShare
from streampack.lane.rotation import rotate
from streampack.lane.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Failed:
    """A lane raised: the error itself if it can be pickled, and its traceback in words."""

    error: BaseException | None
    traceback: str


#: What a worker sends: a lane's batch or end, whose round is a `SavedRound`.
Message = LaneBatch | LaneEnd | Failed

#: Signals that are for the loop to answer, by its own handlers.
LOOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Keep signals waiting inside the block, in this thread and in what is forked in it.

    A fork carries the loop's whole stack: a Ctrl-C that reached the child before `run_worker`
    would unwind it there, and the child would go on as a second copy of the loop.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_worker(
    share: LaneShare,
    sharing: Sharing,
    prefetch_batches: int,
    sender: Connection,
    inherited: Sequence[Connection],
) -> None:
    """Main function of the process; `inherited` are ends of other pipes, not to be kept open."""
    for connection in inherited:
        connection.close()
    # Ctrl-C goes to every process of the terminal; whether it ends the run is for the loop to
    # say. And a handler that the loop has for SIGTERM (to save a checkpoint) is not the worker's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LOOP_SIGNALS)  # `held_back` while it was forked
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    waiting: queue.Queue[Any] = queue.Queue(maxsize=prefetch_batches)
    sending = threading.Thread(target=_send_all, args=(waiting, sender), daemon=True)
    sending.start()
    try:
        dealer = sharing.dealer(share.config, sharing.board(share.config), share.states)
        for item in rotate(share, dealer):
            waiting.put(item._replace(round=SavedRound(item.round.state(0))))
    except BaseException as error:  # whatever it is, the loop must hear of it
        waiting.put(Failed(_picklable(error), traceback.format_exc()))
    waiting.put(None)
    sending.join()


def _send_all(waiting: queue.Queue[Any], sender: Connection) -> None:
    try:
        while (message := waiting.get()) is not None:
            sender.send_bytes(pickle.dumps(message, protocol=5))  # which copies arrays once
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the loop is gone or has had enough
    except BaseException:  # nobody would take what is made, and the loop would wait for ever
        traceback.print_exc()
        os._exit(1)
    sender.close()


def _die_with_parent(parent: int) -> None:
    """End this worker when the loop's process is killed, which then cannot do it.

    The parent may be a fork server, which outlives the loop; the sentinel tells of the loop, but
    not where another process has inherited its other end. So both are watched.
    """
    loop = multiprocessing.parent_process()
    watched = [loop.sentinel] if loop is not None else []
    while os.getppid() == parent and not wait(watched, 0.5):
        pass
    os._exit(0)


def _picklable(error: BaseException) -> BaseException | None:
    try:  # what multiprocessing itself will do to it
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        return error if type(again) is type(error) else None
    except Exception:
        return None
