"""PackedLoader: the batches of a rank, made ahead by worker processes, with exact state.

Each worker runs some of the rank's lanes and sends their batches in rotation; the loader asks the
worker that owns the next lane, so the order is the same for any number of workers, none included.
Its state is what the loop has taken, never what a worker has made ahead.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from streampack.batch import PackedBatch
from streampack.dataset import PackedDataset
from streampack.errors import ConfigError, StateError, StreampackError, WorkerError
from streampack.lane import LaneEnd, warm_up
from streampack.metrics import Metrics
from streampack.rotation import rotate
from streampack.state import RunState
from streampack.worker import LOOP_SIGNALS, Dry, Failed, Made, held_back, run_worker

__all__ = ["PackedLoader"]

PIPE_BYTES = 1 << 20  # what an unprivileged process may ask for on Linux; batches fit in it
_BYTES_PER_TOKEN = 8  # of a batch on its way, generously


class PackedLoader:
    """Iterate a `PackedDataset` with worker processes.

    Iterating goes on where the loop stopped: after a ``break``, behind the last batch it got;
    after `load_state_dict`, behind the state; after the last epoch, at the beginning again. One
    iterator is live at a time: the next one, or `load_state_dict`, ends it. Several loaders may
    share a dataset; each starts from the dataset's state and keeps its own.

    Args:
        dataset: what to load.
        num_workers: worker processes; 0 makes batches in the loop's own process.
        prefetch_batches: batches each worker makes ahead.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is Python's default.
        pin_memory: give batches in page-locked memory, where there is a device to copy them to.
        timeout_s: raise if a worker gives nothing for so long; None waits as long as it lives.

    Raises (while iterating):
        WorkerError: a worker was killed or timed out. The loader can be iterated again: it starts
            new workers behind the last batch the loop got.
        StreampackError: whatever the source or a hook raised in a worker.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        num_workers: int = 0,
        prefetch_batches: int = 4,
        multiprocessing_context: str | None = None,
        pin_memory: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        if num_workers < 0 or prefetch_batches < 1:
            raise ConfigError(
                f"num_workers is {num_workers}, prefetch_batches is {prefetch_batches}.",
                "There is no such number of processes or batches.",
                "Use num_workers >= 0 and prefetch_batches >= 1.",
            )
        self.dataset = dataset
        self.num_workers = num_workers
        self._prefetch_batches = prefetch_batches
        self._context: Any = multiprocessing.get_context(multiprocessing_context)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._timeout_s = timeout_s
        self._config = dataset.lane_config(max(num_workers, 1))
        self._run = dataset.start()
        self._finished = False
        self._batches: Generator[Any, None, None] | None = None
        self._metrics = Metrics()

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of what the loop has taken so far, the batch at hand included."""
        return self._run.as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go on behind a saved state at the next iteration.

        Args:
            state, allow: see `PackedDataset.load_state_dict`.

        Raises:
            StateError: the state is of another run; the message names the field.
        """
        self._config, self._run = self.dataset.resume(state, allow=allow)
        self._finished = False
        self._stop()

    def metrics(self) -> Metrics:
        """Totals over the batches the loop has taken from this loader."""
        return self._metrics + Metrics()

    def __iter__(self) -> Iterator[PackedBatch]:
        if self._finished:
            self._run = RunState.begin(self._run.fingerprint, self._run.topology)
            self._finished = False
        self._stop()
        batches = self._in_workers() if self.num_workers else self._in_process()
        self._batches = batches
        with closing(batches):
            while True:
                began = time.perf_counter()
                if self._batches is not batches:
                    raise StateError(
                        "The loader was iterated anew, or given a state, while this iterator was "
                        "in use.",
                        "Two iterators would share one place in the stream.",
                        "Use one iterator at a time, or one loader for each.",
                    )
                item = next(batches, None)
                if item is None:
                    self._finished = True
                    return
                batch, spent, state = item
                if self._pin_memory:
                    batch = batch.pin_memory()
                totals = self._metrics
                if spent is not None:
                    totals = self._metrics = totals + spent
                totals.batches += 1
                totals.composition += batch.composition
                totals.wait_s += time.perf_counter() - began
                self._run.commit(batch.lane, batch.step, state)
                yield batch

    def _stop(self) -> None:
        """End the live iterator's workers, if there is one."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def _own_lanes(self) -> list[int]:
        return self._run.topology.lanes(self._run.next_batch, self._config.lanes)

    def _in_process(self) -> Generator[Any, None, None]:
        own = self._own_lanes()
        for lane, batch in rotate(self._config, own, {n: self._run.lane(n) for n in own}):
            if isinstance(batch, LaneEnd):
                self._end(lane, batch.round.state(batch.emitted), batch.metrics)
                continue
            state = partial(batch.round.state, batch.emitted)
            packed = PackedBatch(batch.rows, lane=lane, step=batch.step, state=state)
            yield packed, batch.metrics, state

    def _in_workers(self) -> Generator[Any, None, None]:
        own = self._own_lanes()
        warm_up(self._config)
        workers: list[_Worker] = []
        rounds: dict[int, dict[str, Any]] = {}
        try:
            for _ in range(min(self.num_workers, len(own))):
                workers.append(self._start_worker(own, workers))
            running = {lane: workers[i % len(workers)] for i, lane in enumerate(own)}
            while running:
                for lane in list(running):
                    message = running[lane].receive(self._timeout_s)
                    assert message.lane == lane, "a worker's lanes rotate as the loader's do"
                    if isinstance(message, Dry):
                        del running[lane]
                        self._end(lane, message.state, message.metrics)
                        continue
                    if message.round is not None:
                        rounds[lane] = message.round
                    state = {**rounds[lane], "emitted": message.emitted}
                    packed = PackedBatch(message.rows, lane=lane, step=message.step, state=state)
                    yield packed, message.metrics, state
        finally:
            for worker in workers:
                worker.stop()

    def _end(self, lane: int, state: dict[str, Any], metrics: Metrics) -> None:
        """A lane is dry; its last losses count, and they count once."""
        self._metrics += metrics
        self._run.end(lane, state)

    def _start_worker(self, own: list[int], started: list[_Worker]) -> _Worker:
        """The next worker after those that are started."""
        lanes = own[len(started) :: min(self.num_workers, len(own))]
        return _Worker(
            self._context,
            len(started),
            self._config,
            lanes,
            {lane: self._run.lane(lane) for lane in lanes},
            self._prefetch_batches,
            [worker.receiver for worker in started],
        )


class _Worker:
    """The loader's side of one worker process."""

    def __init__(
        self,
        context: Any,
        number: int,
        config: Any,
        lanes: list[int],
        states: dict[int, Any],
        prefetch_batches: int,
        inherited: list[Connection],
    ) -> None:
        self.number = number
        self.lanes = lanes
        self.receiver, sender = context.Pipe(duplex=False)
        # Room for the batches to be made ahead and not for many more: what a worker has sent is
        # memory held, and a dead worker is noticed only behind it.
        _widen(sender, min(PIPE_BYTES, prefetch_batches * config.batch_tokens * _BYTES_PER_TOKEN))
        inherited = [*inherited, self.receiver]
        forked = context.get_start_method() == "fork"
        self.process = context.Process(
            target=run_worker,
            args=(config, lanes, states, prefetch_batches, sender, inherited if forked else []),
            name=f"streampack-worker-{number}",
            daemon=True,
        )
        try:
            with held_back(LOOP_SIGNALS if forked else ()):
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.receiver.close()
            raise ConfigError(
                f"The dataset cannot be sent to a worker process: {error}.",
                f"Processes started by {context.get_start_method()} get it pickled.",
                'Define hooks and factories at the top level of a module, or use "fork".',
            ) from error
        finally:
            sender.close()  # the worker's death then ends the pipe

    def receive(self, timeout_s: float | None) -> Made | Dry:
        """The next message; raises what the worker raised."""
        ready = wait([self.receiver, self.process.sentinel], timeout_s)
        if not ready:
            raise WorkerError(
                f"Worker {self.number} (process {self.process.pid}) gave nothing for {timeout_s} s "
                f"(lanes {self._lane_names()}).",
                "The loop would wait for ever.",
                "Look at storage and tokenizer, or raise timeout_s.",
            )
        if self.receiver not in ready and not self.receiver.poll():
            raise self._died()  # even if a process of the worker's own still holds the pipe
        try:
            message: Made | Dry | Failed = self.receiver.recv()
        except (EOFError, OSError):  # at the end of a message, or inside one
            raise self._died() from None
        if isinstance(message, Failed):
            raise _as_raised(message, self.number)
        return message

    def stop(self) -> None:
        """End the process; a worker blocked on a full pipe or in I/O does not hold this up."""
        self.receiver.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()

    def _died(self) -> WorkerError:
        self.process.join(5)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"exited with code {code}"
        return WorkerError(
            f"Worker {self.number} (process {self.process.pid}) {how} "
            f"(lanes {self._lane_names()}).",
            "Batches it had made ahead are gone; none that the loop got is affected.",
            "Iterate the loader again to go on behind the last batch, or resume from a saved "
            "state. If the system killed it, look at the memory of the machine.",
        )

    def _lane_names(self) -> str:
        return ", ".join(map(str, self.lanes))


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
