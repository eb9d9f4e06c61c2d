"""Child processes: started with a pipe each, and waited for by their pipes and by their ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import _bootstrap
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.context import get_spawning_popen
from typing import IO, Any

from streampack.threads import LOOK_S

Target = Callable[..., None]
_IMPORTS_S = 5.0  # longest wait for threads that import modules


class Child:
    """A running process, and the parent's end of a pipe to it.

    Args:
        context: context of the start method.
        target: called in the process with its end of the pipe and with `args`, which are sent
            through files: a full pipe of a process that has died would block forever.
        duplex: True if the parent sends too.
        daemon: True if the process may have no children, and ends with its parent's interpreter.

    Attributes:
        process: the process.
        pipe: the parent's end of the pipe.
    """

    def __init__(
        self, context: Any, target: Target, *args: Any, duplex: bool = False, daemon: bool = False
    ) -> None:
        self.pipe, theirs = context.Pipe(duplex=duplex)
        sent = _Sent(args)
        self.process = context.Process(target=_begin, args=(target, theirs, sent), daemon=daemon)
        try:
            if context.get_start_method() == "fork":
                _wait_for_imports()
            self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()  # so that the pipe ends with the process
            sent.close()
        self._handle: int | None = None
        self._sentinel: int = self.process.sentinel
        # A sentinel of multiprocessing is the end of a pipe, and waits for everyone who inherited
        # the other one.
        with suppress(AttributeError, OSError):  # no Linux, an old one, or the process has ended
            self._sentinel = self._handle = os.pidfd_open(self.process.pid)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, which has ended; None if the system has dropped it."""
        self.process.join(1)
        code: int | None = self.process.exitcode
        return code

    def end(self) -> None:
        """Kill the process if it runs, and release its resources."""
        if self._handle is None:
            self.process.kill()  # a stopped process would not answer SIGTERM
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None
        self.process.join()
        self.pipe.close()


def wait_for(
    children: Collection[Child], waker: int | None = None
) -> tuple[list[Child], list[Child], bool]:
    """Wait until a child has sent something or ended, or until `waker` can be read.

    Args:
        children: the children.
        waker: a file descriptor.

    Returns:
        The children that have sent something; the ones that have ended and sent nothing more; and
        whether `waker` can be read.
    """
    pipes = [child.pipe.fileno() for child in children]
    sentinels = [child._sentinel for child in children]
    events = [*pipes, *sentinels, *([] if waker is None else [waker])]
    while not (ready := {*wait(events, LOOK_S)}):
        pass  # an interrupt
    sent = [child for child, pipe in zip(children, pipes, strict=True) if pipe in ready]
    ended = [child for child, end in zip(children, sentinels, strict=True) if end in ready]
    return sent, [child for child in ended if child not in sent], waker in ready


class _Sent:
    """Values for a child: inherited by a fork, otherwise pickled into a file without a name."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self._files: list[IO[bytes]] = []

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            return type(self), (self.values,)
        file = _unnamed_file()
        self._files.append(file)
        reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self.values)
        file.flush()
        return _opened, (reduction.DupFd(file.fileno()),)

    def close(self) -> None:
        """Close the file, once the child holds its own handle."""
        while self._files:
            self._files.pop().close()


def _unnamed_file() -> IO[bytes]:
    """Open a file without a name, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("streampack"), "w+b")
    return tempfile.TemporaryFile()  # type: ignore[return-value]


def _opened(sent: Any) -> _Sent:
    with open(sent.detach(), "rb") as file:
        file.seek(0)  # the sender left the position at the end
        return _Sent(pickle.load(file))  # noqa: S301


def _wait_for_imports() -> None:
    """Wait until no other thread imports a module, since its lock would be held in a fork."""
    until = time.monotonic() + _IMPORTS_S
    locks: dict[str, Any] = vars(_bootstrap).get("_module_locks", {})
    while time.monotonic() < until:
        held = [lock.owner for ref in [*locks.values()] if (lock := ref()) is not None]
        if {*held} <= {None, threading.get_ident()}:
            return
        time.sleep(0.001)


def _begin(target: Target, pipe: Connection, sent: _Sent) -> None:
    target(pipe, *sent.values)


def wait_for_parent() -> None:
    """Wait until the process that started this one has ended."""
    started_by, parent = multiprocessing.parent_process(), os.getppid()
    assert started_by is not None
    assert started_by.pid is not None
    try:
        wait([os.pidfd_open(started_by.pid)])
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # no Linux, or an old one
        # The parent may be a fork server, which outlives its client, and the sentinel waits for
        # everyone who inherited its other end.
        while os.getppid() == parent and not wait([started_by.sentinel], 0.5):
            pass
