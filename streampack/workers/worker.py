"""A worker process of `PackedLoader`: runs some of a rank's lanes and sends their batches.

Batches go through one pipe per worker in their compact form, so nothing of a batch lies in shared
memory that a killed process could leave behind. Few bytes travel (2 or 4 per token); the per-token
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from streampack.lane.lane import LaneConfig, LaneEnd
from streampack.lane.rotation import rotate
from streampack.metrics import Metrics
from streampack.window.gather import PackedRows
from streampack.workers.messages import send_message

__all__ = ["LOOP_SIGNALS", "Dry", "Failed", "Made", "held_back", "run_worker"]


@dataclass(frozen=True, slots=True)
class Made:
    """A batch.

    Attributes:
        rows, step, metrics: of `LaneBatch`; lane: which lane.
        round: the lane's state before any batch of this round, or None if it was sent before.
        emitted: batches of the round, this one included.
        has_next: False if it is the lane's last one.
    """

    lane: int
    rows: PackedRows
    step: int
    metrics: Metrics | None
    round: dict[str, Any] | None
    emitted: int
    has_next: bool


@dataclass(frozen=True, slots=True)
class Dry:
    """A lane has no batch at all; its state, and what it lost or spent."""

    lane: int
    state: dict[str, Any]
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Failed:
    """A lane raised: the error itself if it can be pickled, and its traceback in words."""

    error: BaseException | None
    traceback: str


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
    config: LaneConfig,
    lanes: Sequence[int],
    states: Mapping[int, dict[str, Any] | None],
    prefetch_batches: int,
    sender: Connection,
    inherited: Sequence[Connection],
) -> None:
    """Main function of the process.

    Args:
        config, lanes, states: what to run; see `rotate`.
        prefetch_batches: batches made ahead of those that are sent.
        sender: where they go.
        inherited: ends of other pipes that a forked child holds and must not keep open.
    """
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
        sent_round: dict[int, int] = {}
        for lane, batch in rotate(config, lanes, states):
            if isinstance(batch, LaneEnd):
                waiting.put(Dry(lane, batch.round.state(batch.emitted), batch.metrics))
                continue
            number = batch.round.number
            fresh = sent_round.get(lane) != number
            sent_round[lane] = number
            state = batch.round.state(0) if fresh else None
            waiting.put(
                Made(
                    lane,
                    batch.rows,
                    batch.step,
                    batch.metrics,
                    state,
                    batch.emitted,
                    batch.has_next,
                )
            )
    except BaseException as error:  # whatever it is, the loop must hear of it
        waiting.put(Failed(_picklable(error), traceback.format_exc()))
    waiting.put(None)
    sending.join()


def _send_all(waiting: queue.Queue[Any], sender: Connection) -> None:
    try:
        while (message := waiting.get()) is not None:
            send_message(sender, message)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the loop is gone or has had enough
    except BaseException:  # nobody would take what is made, and the loop would wait for ever
        traceback.print_exc()
        os._exit(1)
    sender.close()


def _die_with_parent(parent: int) -> None:
    """A loop's process that is killed outright cannot end its workers; they end themselves.

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
