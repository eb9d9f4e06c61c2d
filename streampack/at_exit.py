"""The work of a process at its end, in one order, before Python takes modules apart.

Threads that are left then are daemons: Python ends them when they call into it, which kills the
process by a signal if they are inside torch or pyarrow. In a forked child each step finds only what
the child itself has begun.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Literal, get_args

#: The steps, in order:
#:   1. iterators left open are closed, which ends their workers;
#:   2. workers of loops that another thread is in are ended;
#:   3. pending collectives are waited for, because other ranks need them;
#:   4. operations of a job's store that were given up are waited for;
#:   5. threads that decode notice that the process ends, and are waited for.
Step = Literal["loops", "workers", "collectives", "store", "decoding"]

_work: list[tuple[Step, Callable[[], object]]] = []


def at_exit(step: Step, work: Callable[[], object]) -> None:
    """Call a function in a step, before the functions of all libraries imported so far."""
    _work.append((step, work))
    order = get_args(Step)
    for _, each in sorted(_work, key=lambda pair: order.index(pair[0]), reverse=True):
        atexit.unregister(each)
        atexit.register(each)  # Python calls the last one first
