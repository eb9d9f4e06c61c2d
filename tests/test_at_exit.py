"""Processes end: none hangs, and no signal ends one that was not sent."""

from __future__ import annotations

import gzip
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.forked import Host
from tests.support.servers import http_server

ORDERED = """
import atexit, os, random, sys
from streampack import at_exit

atexit.register(print, "a library imported before")
steps = ["collectives", "loops", "store", "decoding", "workers"]
for step in steps:
    at_exit.at_exit(step, lambda step=step: print(step))
at_exit.at_exit("store", lambda: 1 / 0)
if os.fork():
    assert os.wait()[1] == 0
    print("the parent")
else:
    print("the child")
sys.stdout.flush()
"""


def test_the_steps_have_one_order_for_any_order_of_imports(host: Host, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ORDERED)
    statuses, output = host.run(tmp_path / "program.py", end="usual")
    assert statuses == [0]
    steps = ["loops", "workers", "collectives", "store", "decoding"]
    printed = [line for line in output.splitlines() if line in {*steps} or line[:2] in ("a ", "th")]
    assert printed == [
        *("the child", *steps, "a library imported before"),
        *("the parent", *steps, "a library imported before"),
    ]
    assert "ZeroDivisionError" in output  # which keeps no other step from its work


PROGRAM = """
import gc, glob, os, signal, sys, tempfile, threading
from streampack import PackedDataset, PackedLoader, Waits, sources
from streampack.storage.storage import Storage
from streampack.workers.shared_exchange import PREFIX

url, cache, ending = sys.argv[1:]
files = sources.JSONL([f"{url}/{i}.{ending}" for i in range(3)], storage=Storage(cache_dir=cache))
dataset = PackedDataset(files, seq_len=512, batch_size=2, lanes=3)
"""

ENDS = {
    "while threads read ahead": """
    batches = iter(PackedLoader(dataset))
    next(batches)
    """,
    "with workers": """
    batches = iter(PackedLoader(dataset, num_workers=2))
    next(batches)
    """,
    "with a watcher": """
    batches = iter(Waits(PackedLoader(dataset, num_workers=1)))
    next(batches)
    """,
    "while another thread is in the loop": """
    begun = threading.Event()
    def loop():
        for batch in PackedLoader(dataset, num_workers=1):
            begun.set()
    threading.Thread(target=loop, daemon=True).start()
    begun.wait()
    """,
    "in a fork, and then itself": """
    batches = iter(PackedLoader(dataset))
    next(batches)
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    next(batches)
    """,
    "while a fork drops the iterator": """
    batches = iter(PackedLoader(dataset, num_workers=2))
    next(batches)
    shared = glob.glob(f"{tempfile.gettempdir()}/{PREFIX}{os.getpid()}-*")
    assert shared  # by the loop and its workers
    if not (child := os.fork()):
        del batches
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(os.path.exists, shared))
    assert sum(1 for batch in batches) > 500
    """,
    "by a handler of SIGTERM": """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    for batch in PackedLoader(dataset, num_workers=1):
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "by Ctrl-C": """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for batch in PackedLoader(dataset, num_workers=1):
        os.kill(os.getpid(), signal.SIGINT)
    """,
}
STATUS = {"by a handler of SIGTERM": 7, "by Ctrl-C": -signal.SIGINT}
#: These programs collect all objects at their end; the others, those made by them.
WHOLE = ("with workers", "by Ctrl-C")
#: Left to the night.
LATER = (
    "with a watcher",
    "while another thread is in the loop",
    "in a fork, and then itself",
    "by a handler of SIGTERM",
)
ABORTED = ("terminate called", "Fatal Python error", "Exception ignored", "Error in atexit")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Files of a megabyte, on a server."""
    folder, rng = tmp_path_factory.mktemp("files"), random.Random(0)
    ids = [rng.randrange(9999) for _ in range(200_000)]
    for number in range(3):
        documents = (ids[at : at + 200] for at in range(0, len(ids), 200))
        data = "".join(json.dumps({"tokens": own}) + "\n" for own in documents).encode()
        (folder / f"{number}.jsonl").write_bytes(data)
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(data, 1))
    with http_server(folder) as http:
        yield http.url


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        *((how, "jsonl") for how in ENDS if how not in LATER),
        *(pytest.param(how, "jsonl", marks=pytest.mark.slow) for how in LATER),
        pytest.param("while threads read ahead", "jsonl.gz", marks=pytest.mark.slow),
        pytest.param("by Ctrl-C", "jsonl.gz", marks=pytest.mark.slow),
    ],
)
def test_a_process_ends_in_the_middle_of_a_loop(
    host: Host, url: str, tmp_path: Path, how: str, ending: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + dedent(ENDS[how]))
    statuses, output = host.run(
        tmp_path / "program.py",
        url,
        tmp_path / "cache",
        ending,
        end="whole" if how in WHOLE else "usual",
    )
    assert statuses == [STATUS.get(how, 0)], output[-3000:]
    assert not [sign for sign in ABORTED if sign in output], output[-3000:]
