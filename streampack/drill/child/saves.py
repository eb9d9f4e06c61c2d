"""Saves of a process: files below the checkpoints that it writes, renames and reads."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from .watch import Watch, line

#: Audit events of paths that a program changes or removes.
REMOVING = ("os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Saves:
    """Sees saves, and fails them in the drill of a full disk."""

    def __init__(self, watch: Watch, settings: dict[str, Any]) -> None:
        self.watch = watch
        self.checkpoints: tuple[str, ...] = tuple(settings["checkpoints"])  # names of one folder
        self.protected: tuple[str, ...] = tuple(settings["protected"])
        self.count = self.writes = self.renames = 0  # steps before the save; files of it

    def begin(self) -> None:
        """Count files anew if a step was done since the last one."""
        if self.count != self.watch.count:
            self.count, self.writes, self.renames = self.watch.count, 0, 0

    def in_checkpoints(self, path: Any, writes: bool = True) -> str | None:
        """Return the absolute path of a file below the checkpoints, otherwise None."""
        path = path.name if hasattr(path, "write") and hasattr(path, "name") else path
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        if writes and f"{absolute}/".startswith(self.protected):
            reason = "streampack drill protects the real folder of checkpoints"
            raise PermissionError(errno.EACCES, reason, absolute)
        return absolute if absolute.startswith(self.checkpoints) else None

    def before_write(self, path: str) -> None:
        """Note a file of a save; a full disk and the moment between two files are here."""
        self.begin()
        watch = self.watch
        watch.wait_at("files", self.writes)
        watch.write("write", rank=watch.rank(), nth=self.writes, path=path, line=line())
        self.writes += 1
        if self.is_full():
            self.truncate(path, 0)

    def is_full(self) -> bool:
        """Return True from a step on in the drill of a full disk."""
        moment = self.watch.moment
        return moment.get("where") == "full" and self.watch.count >= moment["count"]

    def truncate(self, path: str, share: float) -> None:
        """Leave only the first part of a file that the program writes."""
        self.watch.is_writing = True
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(file, int(os.fstat(file).st_size * share))
        os.close(file)
        self.watch.is_writing = False

    def saver(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wrap a function that writes to its second argument, such as `torch.save`."""
        watch = self.watch

        def save(*arguments: Any, **named: Any) -> Any:
            target: Any = arguments[1] if len(arguments) > 1 else named.get(name)
            path = self.in_checkpoints(target)
            if path is None or watch.is_writing:
                return original(*arguments, **named)
            self.begin()
            is_open = hasattr(target, "write")  # counted when it was opened
            nth = self.writes - 1 if is_open else self.writes
            if not is_open:
                self.before_write(path)
            watch.is_writing = True
            try:
                result = original(*arguments, **named)
            finally:
                watch.is_writing = False
            watch.write("saved", rank=watch.rank(), nth=nth)
            if self.is_full() or watch.is_at("save", nth):
                if is_open:
                    target.flush()
                self.truncate(path, 0.5)
                if self.is_full():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                watch.wait()
            return result

        save.__wrapped__ = original  # type: ignore[attr-defined]
        return save

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See files that are opened for writing or renamed, by Python's audit events."""
        watch = self.watch
        if event == "open" and not watch.is_writing and isinstance(arguments[2], int):
            writes = bool(arguments[2] & WRITING)
            path = self.in_checkpoints(arguments[0], writes)
            if path is None or arguments[2] & os.O_DIRECTORY:
                return
            if not writes:
                watch.write("read", rank=watch.rank(), path=path, line=line())
                return
            self.before_write(path)
            if self.is_full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if watch.is_at("opened", self.writes - 1):
                self.truncate(path, 0)
                watch.wait()
        elif event == "os.rename" and self.in_checkpoints(arguments[1]):
            self.begin()
            watch.wait_at("rename", self.renames)
            path = os.fsdecode(arguments[1])
            watch.write("rename", rank=watch.rank(), nth=self.renames, path=path)
            self.renames += 1
        elif event in REMOVING:
            self.in_checkpoints(arguments[0])

    def watch_torch(self) -> None:
        """See files of torch, which C++ code writes."""
        import torch

        torch.save = self.saver(torch.save, "f")

    def watch_safetensors(self) -> None:
        """See files of safetensors, which Python does not open itself."""
        module = sys.modules["safetensors.torch"]
        module.save_file = self.saver(module.save_file, "filename")  # type: ignore[attr-defined]
