"""`streampack warm`, which compiles kernels ahead of time, for an image or a shared file system."""

from __future__ import annotations

import time

from rich.console import Console

from streampack.cli.options import say
from streampack.errors import ConfigError


def warm() -> None:
    """Compile the kernels that runs need, so that the first batch does not wait for them.

    Run it when the image is built, with the NUMBA_CACHE_DIR of the job, or without one if the job
    has none.
    """
    from streampack.cli.kernel_runs import compile_kernels

    console = Console(stderr=True)
    began, used = time.perf_counter(), time.process_time()
    folders = compile_kernels()
    if not folders:
        raise ConfigError(
            "Compiled kernels need a writable cache folder, but there is none.",
            "Set NUMBA_CACHE_DIR to a folder that can be written.",
            setting="NUMBA_CACHE_DIR",
        )
    took, cpu = time.perf_counter() - began, time.process_time() - used
    say(console, f"The kernels are compiled ({took:.0f} s, {cpu:.0f} s of processor) and kept in")
    for name in folders:
        print(name)
