"""The protocol of engines, and the engine that uses this process alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

Task = tuple[int, ...]
#: Calls ``function(job, *task)`` for each task and yields the results, in any order. The first
#: error of a task is raised. Closing the generator stops the tasks that are running.
Engine = Callable[[Callable[..., Any], Any, Sequence[Task]], Generator[Any, None, None]]

RETRIES = 3  # of a task that lost its worker


def run_here(
    function: Callable[..., Any], job: Any, tasks: Sequence[Task]
) -> Generator[Any, None, None]:
    """Run the tasks one after the other in this process; see `Engine`."""
    for task in tasks:
        yield function(job, *task)
