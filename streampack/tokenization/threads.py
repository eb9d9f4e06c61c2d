"""How many threads the tokenizers library uses, and why a fork is safe.

The library has one thread pool per process and reads two environment variables: one turns the pool
off, one is its size when it starts. Values that the user has set are kept, with one exception: in a
process that was forked after its parent used the pool, the threads of the pool do not exist, and
using it would wait for ever. There the pool is always turned off.
"""

from __future__ import annotations

import multiprocessing
import os

_SWITCH = "TOKENIZERS_PARALLELISM"
_SIZE = "RAYON_NUM_THREADS"
_OFF = ("", "off", "false", "f", "no", "n", "0")  # how the library reads the switch


class _Pool:
    """What this process knows about the pool and the variables; one per process."""

    def __init__(self) -> None:
        self.used_by: int | None = None  # process that may have started the pool
        self.ours: dict[str, str] = {}  # values of the variables that we wrote
        self.hidden = False  # True while the switch is set for a fork
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._after)

    def set(self, name: str, value: str) -> None:
        """Set a variable unless the user did."""
        if os.environ.get(name, self.ours.get(name)) == self.ours.get(name):
            os.environ[name] = self.ours[name] = value

    def _before(self) -> None:
        # The library warns in a forked child unless its switch is set at that moment.
        if self.used_by == os.getpid() and _SWITCH not in os.environ:
            os.environ[_SWITCH] = self.ours[_SWITCH] = "false"
            self.hidden = True

    def _after(self) -> None:
        if self.hidden:
            os.environ.pop(_SWITCH, None)
            self.ours.pop(_SWITCH, None)
            self.hidden = False


_pool = _Pool()


def configure(threads: int | None) -> None:
    """Prepare this process for an encode call; cheap enough to be called before each.

    Args:
        threads: threads to use; None means one in a worker process and the library's own choice
            elsewhere. The size of the pool is that of its first use in a process.
    """
    if _pool.used_by not in (None, os.getpid()):
        os.environ[_SWITCH] = _pool.ours[_SWITCH] = "false"  # forked: the pool has no threads
        return
    if threads is None and multiprocessing.parent_process() is not None:
        threads = 1
    if threads is not None:
        _pool.set(_SWITCH, "true" if threads > 1 else "false")
        if threads > 1:
            _pool.set(_SIZE, str(threads))
    if os.environ.get(_SWITCH, "true").lower() not in _OFF:
        _pool.used_by = os.getpid()
