"""The user's command, with its folder of checkpoints exchanged, offline, and watched."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streampack.drill import child
from streampack.errors import ConfigError

#: Loggers and hubs that must not hear of a drill.
OFFLINE = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "DISABLE_TELEMETRY": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
#: Variables in which a shell keeps folders that it was in.
SHELL = ("OLDPWD", "PWD", "_")
RANKS = ("--nproc-per-node", "--nproc_per_node")
#: Loads the folder `child`, then the `sitecustomize` that this one hides.
SITECUSTOMIZE = """\
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("streampack_drill_child", {child!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.start()
hidden = sys.path.pop(next(i for i, p in enumerate(sys.path) if p == os.path.dirname(__file__)))
here = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = here
"""


@dataclass(frozen=True)
class Command:
    """A training command, and its folder of checkpoints.

    Attributes:
        arguments: the command.
        checkpoints: folder that the command saves to without the drill.
        resume: arguments to append at a restart.
    """

    arguments: tuple[str, ...]
    checkpoints: Path
    resume: tuple[str, ...] = ()

    @classmethod
    def checked(cls, arguments: Sequence[str], checkpoints: Path, resume: str) -> Command:
        """Return a command that can be drilled.

        Raises:
            ConfigError: the program is missing, or the folder of checkpoints cannot be exchanged.
        """
        if not Path("/proc/self/environ").exists():
            raise ConfigError(
                "A drill needs the processes in /proc, which this system does not have.",
                "Run it on Linux.",
                setting="command",
            )
        if not arguments or shutil.which(arguments[0]) is None:
            raise ConfigError(
                f"A command must follow `--`, got {shlex.join(arguments) or 'none'}.",
                "Write `streampack drill --checkpoints DIR -- python train.py`.",
                setting="command",
            )
        command = cls(tuple(arguments), checkpoints.absolute(), tuple(shlex.split(resume)))
        if Path.cwd().is_relative_to(command.checkpoints):
            raise ConfigError(
                f"--checkpoints must be a folder for checkpoints alone, got {checkpoints}.",
                "Let the command save into a folder of its own.",
                setting="checkpoints",
            )
        if not command.is_named and (
            checkpoints.is_symlink() or (checkpoints.exists() and any(checkpoints.iterdir()))
        ):
            raise ConfigError(
                f"{checkpoints} is not empty, and neither the command nor a variable of the "
                "environment names it, so it cannot be exchanged.",
                "Pass the folder to the command as an argument, or move its content away.",
                setting="checkpoints",
                path=str(checkpoints),
            )
        return command

    @property
    def is_named(self) -> bool:
        """True if an argument or a variable of the environment names the folder."""
        there = Path("/")
        values = [*self.arguments, *self.resume]
        values += [value for name, value in os.environ.items() if name not in SHELL]
        return any(self._exchanged(value, there) != value for value in values)

    @property
    def ranks(self) -> int | None:
        """Ranks that torchrun starts here; None if another program starts them."""
        for option, value in zip(self.arguments, (*self.arguments[1:], ""), strict=True):
            name, _, text = option.partition("=")
            if name in RANKS and (text or value).isdigit():
                return int(text or value)
        return None

    def with_ranks(self, ranks: int) -> Command:
        """Return the command of torchrun with another number of ranks."""
        arguments = list(self.arguments)
        for index, option in enumerate(arguments):
            name, equals, _ = option.partition("=")
            if name in RANKS and equals:
                arguments[index] = f"{name}={ranks}"
            elif name in RANKS:
                arguments[index + 1] = str(ranks)
        return replace(self, arguments=tuple(arguments))

    def exchanged(self, folder: Path, *, restart: bool) -> list[str]:
        """Return the arguments of a start that saves into `folder`."""
        arguments = self.arguments + (self.resume if restart else ())
        return [self._exchanged(argument, folder) for argument in arguments]

    def environment(self, folder: Path, hook: Path, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment of a start that saves into `folder`."""
        variables = {name: self._exchanged(value, folder) for name, value in os.environ.items()}
        paths = [str(hook), *filter(None, [variables.get("PYTHONPATH")])]
        names = [folder, *([] if self.is_named else [self.checkpoints])]
        own = {
            "checkpoints": [f"{name}/" for name in names],
            "protected": [f"{self.checkpoints}/"] if self.is_named else [],
            "drill": os.getpid(),
        }
        return {
            **variables,
            **OFFLINE,
            "MLFLOW_TRACKING_URI": f"file:{folder.parent}/mlruns",
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            child.SETTINGS: json.dumps({**settings, **own}),
        }

    def _exchanged(self, argument: str, folder: Path) -> str:
        """Replace the folder in ``DIR``, ``--option=DIR``, ``DIR/file`` and ``option=DIR/file``."""
        name, equals, value = argument.rpartition("=")
        if not value:
            return argument
        path = Path(os.path.abspath(value))
        if not path.is_relative_to(self.checkpoints):
            return argument
        return f"{name}{equals}{folder / path.relative_to(self.checkpoints)}"

    @contextmanager
    def linked(self, folder: Path) -> Iterator[None]:
        """Make the folder of checkpoints a link to `folder`, if the command does not name it."""
        if self.is_named:
            yield
            return
        existed = self.checkpoints.exists()
        if existed:
            self.checkpoints.rmdir()
        self.checkpoints.parent.mkdir(parents=True, exist_ok=True)
        self.checkpoints.symlink_to(folder)
        try:
            yield
        finally:
            self.checkpoints.unlink(missing_ok=True)
            if existed:
                self.checkpoints.mkdir()


def write_hook(folder: Path) -> Path:
    """Write the `sitecustomize` that watches Python processes; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(child=child.__file__))
    return folder
