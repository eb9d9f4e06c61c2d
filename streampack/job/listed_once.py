"""A listing that one process of a job makes, and the others take from it.

Steps:
  1. Whoever comes first, by a counter in the job's store, lists.
  2. It puts the manifest into the store, pickled and compressed, in pieces.
  3. The others look for it there. Where the first one failed, each lists for itself, and meets the
     same error or none.
The store is that of torch.distributed (a `TCPStore` on one host of the job); nothing waits for a
process that does not list, so ranks may build datasets in any order, or one rank alone. What is
in the store comes from processes of this job, and so is unpickled.

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
from typing import Any, TypeVar, cast

from streampack.errors import RankError, first_line

PIECE_BYTES = 4 << 20  # a TCPStore refuses values of 8 MiB
TIMEOUT_S = 1800.0  # a listing of a million objects takes some minutes
GRACE_S = 1.0  # for an operation that watches the time itself, and has more to say
T = TypeVar("T")

_REMEDY = "Look for the process that failed first, and start all of them again."

LONGEST_PAUSE_S = 0.5  # between two looks; a blocking wait would hold the store's connection
FAILED = b"failed"


def listed_once(
    described: Mapping[str, Any], list_shards: Callable[[], T], timeout_s: float = TIMEOUT_S
) -> T:
    """What `list_shards` returns in the first process of the job that asks for it.

    Args:
        described: all that the listing depends on; the same in every process.
        list_shards: lists.
        timeout_s: how long to wait for another process.

    Raises:
        RankError: the process that lists died, or takes longer than that.
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
    """What the first process lists; None if it failed."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.01
    while not store.check([f"{key}/pieces"]):
        if time.monotonic() > deadline:
            raise RankError(
                f"The process that lists the shards gave nothing for {timeout_s:g} s.", _REMEDY
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    count = store.get(f"{key}/pieces")
    if count == FAILED:
        return None
    data = b"".join(store.get(f"{key}/{number}") for number in range(int(count)))
    return pickle.loads(zlib.decompress(data))  # noqa: S301


def _asked(timeout_s: float, operation: Callable[[], Any]) -> Any:
    """What the store answers."""
    try:
        return within(timeout_s, operation)
    except RankError:
        raise
    except RuntimeError as error:  # the store's host is gone, or was stopped
        raise RankError(f"The job's store does not answer: {first_line(error)}", _REMEDY) from error


def within(timeout_s: float, operation: Callable[[], T]) -> T:
    """Return the result of an operation of the store, which waits for its host without a limit.

    It runs in a thread, which is left behind where the host does not answer.

    Raises:
        RuntimeError: there is no result after `timeout_s` and `GRACE_S`.
        Exception: whatever the operation raises.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((operation(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="streampack-store", daemon=True).start()
    try:
        result, error = results.get(timeout=min(timeout_s + GRACE_S, threading.TIMEOUT_MAX))
    except queue.Empty:
        raise RuntimeError(f"the store of the job gave no answer for {timeout_s:g} s") from None
    if error is not None:
        raise error
    return cast(T, result)


def job_store() -> Any:
    """The store of torch.distributed, if it connects several processes."""
    dist = sys.modules.get("torch.distributed")  # without it there is no job
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    if dist.get_world_size() < 2:
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):  # backends without one
        return None
