"""The engine of local processes.

Processes are started anew (not forked), so that no thread or lock of the caller is copied. Each
holds one end of a pipe, and ends when the other end is closed: by the engine, or by the operating
system when the process with the engine dies.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

from streampack.errors import ConfigError, WorkerError, first_line
from streampack.tasks.engine import RETRIES, Engine, Task, run_here

_job: Any = None  # of a worker


def in_processes(workers: int) -> Engine:
    """Return an engine of at most `workers` processes; a single one is this process."""

    def run(
        function: Callable[..., Any], job: Any, tasks: Sequence[Task]
    ) -> Generator[Any, None, None]:
        if min(workers, len(tasks)) <= 1:
            yield from run_here(function, job, tasks)
            return
        pickled = _pickled(job)
        left, losses = dict.fromkeys(tasks), 0
        while left:
            try:
                with closing(_until_one_dies(function, pickled, [*left], workers)) as finished:
                    for task, result in finished:
                        del left[task]
                        losses = 0
                        yield result
            except BrokenProcessPool as error:
                losses += 1
                if losses > RETRIES:
                    raise WorkerError(
                        f"Worker processes of {function.__name__} died {losses} times without "
                        "finishing a task.",
                        "Use fewer workers or smaller parts if memory ran out, and repeat the "
                        'command to continue; in a script, call it below `if __name__ == "'
                        '__main__":`.',
                    ) from error

    return run


def _pickled(job: Any) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:  # anything that a user's object raises
        raise ConfigError(
            f"Source and tokenizer must be picklable for several workers: {first_line(error)}",
            "Define their functions at the top level of a module, or use workers=1 (--workers 1).",
            setting="workers",
        ) from error


def _until_one_dies(
    function: Callable[..., Any], pickled: bytes, tasks: Sequence[Task], workers: int
) -> Generator[tuple[Task, Any], None, None]:
    """Yield tasks and their results; raise `BrokenProcessPool` if a worker dies."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), context, initializer=_begin, initargs=(theirs, pickled)
    )
    try:
        futures: dict[Future[Any], Task] = {
            pool.submit(_call, function, task): task for task in tasks
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        ours.close()  # ends workers that still have a task
        pool.shutdown(cancel_futures=True)
        theirs.close()


def _begin(connection: Connection, pickled: bytes) -> None:
    """Prepare a worker: it ignores Ctrl+C and ends with the pipe."""
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    _job = pickle.loads(pickled)  # noqa: S301  # from the process that started this one


def _end_with(connection: Connection) -> None:
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _call(function: Callable[..., Any], task: Task) -> Any:
    return function(_job, *task)
