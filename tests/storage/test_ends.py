"""A process that trains ends at once, whatever the store does and however the loop is left."""

from __future__ import annotations

import re
import time
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from tests.support.forked import Host
from tests.support.raw_server import Connection, raw_server

PROGRAM = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from streampack import PackedDataset, PackedLoader, sources

    url, folder, end, workers = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    storage = sources.Storage(cache_dir=folder + "/cache")
    urls = [f"{url}/{number}.bin" for number in range(4)]
    source = sources.Tokens(urls, dtype="uint16", eos_id=0, storage=storage)
    dataset = PackedDataset(source, seq_len=512, lanes=4, batch_size=4)
    came_s = [0.0]

    def ends():
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
GATE = {("silent", "interrupt", 0), ("failing", "error", 0)}
CELLS = [
    pytest.param(*cell, marks=[] if cell in GATE else pytest.mark.slow, id=" ".join(map(str, cell)))
    for cell in (
        (state, end, workers)
        for state in ("silent", "slow", "failing")
        for end in ("interrupt", "error", "end")
        for workers in (0, 2)
    )
]


@pytest.mark.parametrize(("state", "end", "workers"), CELLS)
def test_a_process_ends_in_every_state_of_the_store(
    state: str, end: str, workers: int, host: Host, tmp_path: Path
) -> None:
    ids = np.random.default_rng(1).integers(1, 60_000, 4_000_000).astype("<u2")
    ids[::300] = 0
    data = ids.tobytes()

    def respond(connection: Connection) -> None:
        asked = re.findall(r"(?i)range: bytes=(\d+)-(\d+)", connection.head)
        first, last = map(int, asked[0]) if asked else (0, len(data) - 1)
        part = data[first : last + 1]
        head = f'Content-Length: {len(part)}\nETag: "a"\n'
        head += f"Content-Range: bytes {first}-{last}/{len(data)}\n" if asked else ""
        if connection.method == "HEAD" or not (tmp_path / "begun").exists():
            connection.answer("206 Partial Content" if asked else "200 OK", head, part)
            return
        (tmp_path / "asked").touch()
        if state == "failing":
            connection.answer("503 Slow Down")
            return
        connection.send(f"HTTP/1.1 206 Partial Content\n{head}\n")
        connection.send(part[:100])
        if state == "silent":
            connection.stopping.wait(600)
        else:
            connection.drip(part[100:], 0.05)

    (tmp_path / "train.py").write_text(dedent(PROGRAM))
    with raw_server(respond) as server:
        arguments = (server.url, tmp_path, end, workers)
        statuses, output = host.run(tmp_path / "train.py", *arguments, end="usual")
    ended_s, began = time.monotonic(), re.findall(r"ends ([\d.]+)", output)
    assert began, output
    assert (tmp_path / "asked").exists()
    assert (statuses == [0]) == (end == "end"), output
    expected = {"interrupt": "KeyboardInterrupt", "error": "of the loop", "end": ""}[end]
    assert expected in output
    assert ended_s - float(began[0]) < 50  # a request has 60 s; the machine may be busy
