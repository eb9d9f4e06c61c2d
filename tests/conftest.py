"""Settings of every test process, made before anything is imported."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.drawn import GATE, NIGHT, leave_to_the_night
from tests.support.forked import host
from tests.support.torchvision_on_cpu import sitecustomize  # noqa: F401

# Hardly anything that is imported or collected becomes garbage.
gc.disable()

# The last function that a process of pytest-xdist calls, which would release its objects in
# seconds; processes that it forks end as usual.
PROCESS = os.getpid()
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(lambda: os.getpid() == PROCESS and os._exit(0))

FOLDER = Path(__file__).parent
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

# Models are tiny, so threads only wait, and libgomp reads the number when torch is imported. Where
# a process has used several of its threads, its forks wait for them for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each data set that is loaded would be reported to the Hub, which takes seconds without a network.
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")

# A shell's background jobs ignore it, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The gate judges a change, so it draws the same few examples every time, however slow the machine
# is. The night looks for new ones (scripts/test_slow.sh); commit its counterexamples as cases.
settings.register_profile(
    "gate", max_examples=GATE, derandomize=True, deadline=None, suppress_health_check=SLOW
)
settings.register_profile(
    "night", max_examples=NIGHT, print_blob=True, deadline=None, suppress_health_check=SLOW
)
settings.load_profile("gate")

# Of all folders, so that each process starts one object store.
from tests.support.fixtures import http, s3, s3_for_all, storage  # noqa: E402

__all__ = ["host", "http", "s3", "s3_for_all", "storage"]


@pytest.hookimpl(tryfirst=True)  # before markers are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that share a run collect the same tests only if no name holds an address."""
    named = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"An id of a test holds an address: {named[0]}")
    leave_to_the_night(items)
    # Files of no folder come last: their last tests are short, so processes end together.
    items.sort(key=lambda item: item.path.parent == FOLDER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave imported objects out of garbage collection, also in the processes that tests fork."""
    gc.freeze()
    gc.set_threshold(100_000)  # collections took more than half of tests that load vocabularies
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, keep the objects that are left out of garbage collection too."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_handler_of_dead_workers() -> Iterator[None]:
    """Remove torch's handler of SIGCHLD after each test.

    A plain DataLoader installs it for the rest of the process, where it raises at any line once a
    worker of a later test is killed.
    """
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)
