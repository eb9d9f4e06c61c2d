"""The demo: the whole way from a corpus to a trained model on one machine, offline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from streampack.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

#: A worker's death is noticed some steps later, and the job is killed after that.
_FEWEST_STEPS = 24
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 30,
    fast: Annotated[
        bool, typer.Option("--fast", help="A smaller corpus, 24 steps at most.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep all files in this empty folder.")
    ] = None,
) -> None:
    """Stream a real corpus from a real object store, train, break things, and resume exactly.

    Needs no network. Everything is stopped and removed in the end, also after Ctrl-C.
    """
    if fast:
        steps = min(steps, _FEWEST_STEPS)
    if steps < _FEWEST_STEPS:
        raise ConfigError(
            f"--steps must be {_FEWEST_STEPS} or more, got {steps}.",
            f"Pass --steps {_FEWEST_STEPS}.",
        )
    from demo.object_store import find_weed, object_store
    from demo.tour import Tour  # imports torch: other commands need not wait for it

    began = time.monotonic()
    console = Console()
    with ExitStack() as stack:
        stack.enter_context(_ending_on_signals())
        folder = _folder(stack, keep)
        tour = Tour(console, folder, steps=steps, corpus_bytes=(2 if fast else 4) << 20)
        with tour.phase("Object store") as say:
            store = stack.enter_context(object_store(folder / "store", find_weed()))
            say(f"{store.name} speaks S3 on {store.environment['S3_ENDPOINT_URL']}")
        remember = tour.run(store)
        kept = f"; its files are in {folder}" if keep is not None else ""
        with tour.phase("Cleaning up"):
            stack.close()
    console.print(f"\nAll of it took {time.monotonic() - began:.0f} s{kept}. To remember:")
    for line in remember:
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def _folder(stack: ExitStack, keep: Path | None) -> Path:
    if keep is None:
        temporary = TemporaryDirectory(prefix="streampack-demo-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(temporary))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ConfigError(f"{keep} is not empty.", "Pass a new folder.")
    return keep.absolute()


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Let a terminated program or a closed terminal clean up as Ctrl-C does."""

    def stop(number: int, frame: Any) -> None:
        if os.getpid() == process:  # a forked worker has nothing to clean up
            raise KeyboardInterrupt
        os._exit(128 + number)

    process = os.getpid()
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
