"""The engine of local processes.

Processes are started anew (not forked), so that no thread or lock of the caller is copied. Each is
sent one task at a time, and ends with the engine, or with the engine's process if that dies.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from streampack.errors import ConfigError, WorkerError, first_line
from streampack.tasks.children import Child, wait_for, wait_for_parent
from streampack.tasks.engine import RETRIES, Engine, Task, run_here
from streampack.tasks.failures import Failure


def in_processes(workers: int) -> Engine:
    """Return an engine of at most `workers` processes; a single one is this process."""

    def run(
        function: Callable[..., Any], job: Any, tasks: Sequence[Task]
    ) -> Generator[Any, None, None]:
        if min(workers, len(tasks)) <= 1:
            yield from run_here(function, job, tasks)
            return
        context = multiprocessing.get_context("spawn")
        work = (_work, function, _pickled(job))
        waiting, running, idle = [*reversed(tasks)], dict[Child, Task](), list[Child]()
        losses: Counter[Task] = Counter()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    child = idle.pop() if idle else Child(context, *work, duplex=True)
                    running[child] = waiting.pop()
                    with suppress(OSError):  # it has died, as `_answers` notices
                        child.pipe.send(running[child])
                for child, answers in _answers([*running]):
                    task = running.pop(child)
                    if answers:
                        idle.append(child)
                        yield answers[0]
                        continue
                    child.end()
                    waiting.append(task)
                    losses[task] += 1
                    _check(losses[task], function)
        finally:
            for child in [*running, *idle]:
                child.end()

    return run


def _check(losses: int, function: Callable[..., Any]) -> None:
    """Raise `WorkerError` if a task has lost its process too often."""
    if losses > RETRIES:
        raise WorkerError(
            f"Worker processes of {function.__name__} died {losses} times in the same task.",
            "Use fewer workers or smaller parts if memory ran out, and repeat the command to "
            'continue; in a script, call it below `if __name__ == "__main__":`.',
        )


def _pickled(job: Any) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:  # anything that a user's object raises
        raise ConfigError(
            f"Source and tokenizer must be picklable for several workers: {first_line(error)}",
            "Define their functions at the top level of a module, or use workers=1 (--workers 1).",
            setting="workers",
        ) from error


def _answers(children: Collection[Child]) -> Iterator[tuple[Child, list[Any]]]:
    """Wait, and yield children that have finished their task with its result, or have died.

    Raises:
        Exception: the error of a task.
    """
    sent, died, _ = wait_for(children)
    for child in sent:
        try:
            answer = child.pipe.recv()
        except (EOFError, OSError):
            died.append(child)
            continue
        if isinstance(answer, Failure):
            raise answer.as_raised()
        yield child, [answer]
    for child in died:
        yield child, []


def _work(pipe: Connection, function: Callable[..., Any], pickled: bytes) -> None:
    """Do the tasks that come through the pipe; leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = None
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            task = pipe.recv()
            try:
                job = job or pickle.loads(pickled)  # noqa: S301  # from the parent
                answer = pickle.dumps(function(job, *task))
            except BaseException as error:
                answer = pickle.dumps(Failure.of(error))
            pipe.send_bytes(answer)


def _end_with_parent() -> None:
    wait_for_parent()
    os._exit(1)
