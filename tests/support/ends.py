"""A training process that is left while the store is silent, slow or failing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import numpy as np

from tests.support.forked import Host
from tests.support.raw_server import Connection, raw_server

__all__ = ["ENDS", "FILES", "STATES", "State", "leave", "shard"]

State = Literal["silent", "slow", "failing"]
STATES: tuple[State, ...] = ("silent", "slow", "failing")
ENDS = ("interrupt", "error", "end")
#: Names of the shards that the process reads.
FILES = [f"{number}.bin" for number in range(4)]
PROGRAM = """
    import faulthandler, json, os, signal, sys, threading, time
    from pathlib import Path
    from streampack import PackedDataset, PackedLoader, sources

    url, folder, end, workers, options = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    storage = sources.Storage(cache_dir=folder + "/cache", storage_options=json.loads(options))
    urls = [f"{url}/{number}.bin" for number in range(4)]
    source = sources.Tokens(urls, dtype="uint16", eos_id=0, storage=storage)
    dataset = PackedDataset(source, seq_len=512, lanes=4, batch_size=4)
    came_s = [0.0]

    def ends():
        faulthandler.dump_traceback_later(10, repeat=True)  # tells where an end that hangs waits
        print("ends", time.monotonic(), flush=True)

    def interrupt():
        while time.monotonic() - came_s[0] < 1:
            time.sleep(0.05)
        ends()
        os.kill(os.getpid(), signal.SIGINT)

    for number, batch in enumerate(PackedLoader(dataset, num_workers=int(workers))):
        came_s[0] = time.monotonic()
        if number == 7:  # each lane has begun
            Path(folder, "begun").touch()  # from now on the store is in its state
            if end == "interrupt":
                threading.Thread(target=interrupt, daemon=True).start()
        if end != "interrupt":
            time.sleep(0.001)  # threads fetch the next blocks meanwhile
        if end != "interrupt" and Path(folder, "asked").exists():
            ends()
            if end == "error":
                raise RuntimeError("of the loop")
            break
"""


def shard() -> bytes:
    """Return the content of each of the shards: 4 M ids of documents of 300."""
    ids = np.random.default_rng(1).integers(1, 60_000, 4_000_000).astype("<u2")
    ids[::300] = 0
    return ids.tobytes()


def leave(
    state: State,
    end: str,
    workers: int,
    host: Host,
    folder: Path,
    healthy: Callable[[Connection], None],
    url: Callable[[str], tuple[str, dict[str, Any]]],
) -> None:
    """Train from a server that comes into its state after eight batches, and end in it.

    Args:
        state: the state of the server.
        end: how the loop is left.
        workers: the number of workers.
        host: runs the process.
        folder: of the program and its cache.
        healthy: answers a request before that.
        url: gives, for the address of the server, the URL of the folder of the shards and the
            options of the store.
    """

    def respond(connection: Connection) -> None:
        if connection.method == "HEAD" or not (folder / "begun").exists():
            healthy(connection)
            return
        (folder / "asked").touch()
        if state == "failing":
            connection.answer("503 Slow Down")
            return
        asked = re.findall(r"(?i)range: bytes=(\d+)-(\d+)", connection.head)
        first, last = map(int, asked[0]) if asked else (0, 7_999_999)
        head = f"Content-Length: {last + 1 - first}\n"
        head += f"Content-Range: bytes {first}-{last}/8000000\n"
        connection.send(f"HTTP/1.1 206 Partial Content\n{head}\n")
        connection.send(bytes(100))
        if state == "silent":
            connection.stopping.wait(600)
        else:
            connection.drip(bytes(100), 0.05)

    (folder / "train.py").write_text(dedent(PROGRAM))
    with raw_server(respond) as server:
        root, options = url(server.url)
        arguments = (root, folder, end, workers, json.dumps(options))
        statuses, output = host.run(folder / "train.py", *arguments, end="usual")
        ended_s = time.monotonic()  # the server may wait for others
    began = re.findall(r"ends ([\d.]+)", output)
    assert began, output
    assert (folder / "asked").exists()
    assert (statuses == [0]) == (end == "end"), output
    assert {"interrupt": "KeyboardInterrupt", "error": "of the loop", "end": ""}[end] in output
    assert ended_s - float(began[0]) < 50, output  # a request has 60 s; the machine may be busy
