"""Listing of shards that one process of a job makes and shares with the others.

Steps:
  1. The first process to increment a counter in the job's store lists the shards.
  2. It writes the manifest to the store, pickled and compressed, in pieces.
  3. The others read it from the store. If the first process failed, each lists for itself, and gets
     the same error or none.
The store is the one of torch.distributed (a `TCPStore` on one host of the job). No process waits
for another unless that one is listing, so ranks may build datasets in any order, or one rank alone.
The contents of the store come from processes of this job, so unpickling them is safe.

Cost: one listing per job instead of one per rank; per further rank 5 to 10 bytes per shard.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import queue
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from streampack.at_exit import at_exit
from streampack.errors import RankError, first_line

PIECE_BYTES = 4 << 20  # a TCPStore refuses values of 8 MiB
TIMEOUT_S = 1800.0  # a listing of a million objects takes some minutes
EXIT_WAIT_S = 1.0  # wait at exit for a thread with an abandoned operation
GRACE_S = 1.0  # added to an operation's own timeout, which has a better error
T = TypeVar("T")

_REMEDY = "Look for the process that failed first, and restart all of them."

LONGEST_PAUSE_S = 0.5  # polling interval, since a blocking wait would occupy the store's connection
FAILED = b"failed"


def listed_once(
    described: Mapping[str, Any], list_shards: Callable[[], T], timeout_s: float = TIMEOUT_S
) -> T:
    """Return the result of `list_shards` in the first process of the job that calls this.

    Args:
        described: all inputs of the listing; the same in every process.
        list_shards: function that lists the shards.
        timeout_s: seconds to wait for another process.

    Raises:
        RankError: the listing process died, or took longer than `timeout_s`.
    """
    store = job_store()
    if store is None:
        return list_shards()
    text = json.dumps(described, sort_keys=True, default=str).encode()
    key = "streampack/manifest/" + hashlib.blake2b(text, digest_size=16).hexdigest()
    if _asked(timeout_s, lambda: store.add(f"{key}/claims", 1)) > 1:
        taken: T | None = _asked(timeout_s, lambda: _take(store, key, timeout_s))
        return list_shards() if taken is None else taken
    try:
        manifest = list_shards()
    except BaseException:
        _asked(timeout_s, lambda: store.set(f"{key}/pieces", FAILED))
        raise
    data = zlib.compress(pickle.dumps(manifest), 1)
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]

    def put() -> None:
        for number, piece in enumerate(pieces):
            store.set(f"{key}/{number}", piece)
        store.set(f"{key}/pieces", str(len(pieces)))

    _asked(timeout_s, put)
    return manifest


def _take(store: Any, key: str, timeout_s: float) -> Any:
    """Return the listing of the first process, or None if it failed."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.01
    while not store.check([f"{key}/pieces"]):
        if time.monotonic() > deadline:
            raise RankError(
                f"The process that lists the shards did not answer within {timeout_s:g} s.", _REMEDY
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    count = store.get(f"{key}/pieces")
    if count == FAILED:
        return None
    data = b"".join(store.get(f"{key}/{number}") for number in range(int(count)))
    return pickle.loads(zlib.decompress(data))  # noqa: S301


def _asked(timeout_s: float, operation: Callable[[], Any]) -> Any:
    """Return the store's response; raise `RankError` if there is none."""
    try:
        return within(timeout_s, operation)
    except RankError:
        raise
    except RuntimeError as error:  # the store's host is gone or was stopped
        raise RankError(f"The job's store does not answer: {first_line(error)}", _REMEDY) from error


def within(timeout_s: float, operation: Callable[[], T]) -> T:
    """Return the result of a store operation, which by itself waits for its host without limit.

    It runs in a thread, which is abandoned if the host does not respond. At exit the process waits
    a moment for such threads: one that returns while Python shuts down kills the process by a
    signal.

    Raises:
        RuntimeError: there is no result after `timeout_s` and `GRACE_S`.
        Exception: any exception of the operation.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((operation(), None))
        except BaseException as error:
            results.put((None, error))

    thread = threading.Thread(target=run, name="streampack-store", daemon=True)
    thread.start()
    try:
        result, error = results.get(timeout=min(timeout_s + GRACE_S, threading.TIMEOUT_MAX))
    except queue.Empty:
        at_exit("store", partial(thread.join, EXIT_WAIT_S))
        raise RuntimeError(f"the store of the job gave no answer for {timeout_s:g} s") from None
    if error is not None:
        raise error
    return cast(T, result)


def job_store() -> Any:
    """Return the store of torch.distributed if it connects several processes, else None."""
    dist = sys.modules.get("torch.distributed")  # without this import there is no job
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    if dist.get_world_size() < 2:
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):  # backends without a store
        return None
