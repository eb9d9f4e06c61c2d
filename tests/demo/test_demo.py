from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from demo.corpus import gather, write_parquet
from demo.gpt import GPT
from demo.object_store import find_weed, object_store
from demo.shards import write_mds
from demo.train import Job, Training, digest_of
from streampack.conversion.shards import Destination
from tests.support.mosaic import streaming_module

pytestmark = pytest.mark.slow  # the package does not import it


@pytest.mark.parametrize("weed", [find_weed(), None], ids=["seaweedfs", "moto"])
def test_the_object_store_keeps_objects_and_is_gone_afterwards(
    tmp_path: Path, weed: str | None
) -> None:
    pytest.importorskip("moto")
    before = os.environ.get("S3_ENDPOINT_URL")
    with object_store(tmp_path / "store", weed) as store:
        assert store.name == ("moto" if weed is None else "SeaweedFS")
        destination = Destination(f"{store.url}/some/where")
        scratch = destination.scratch()
        destination.write("a/b", b"content", scratch)
        destination.clear(scratch)
        assert destination.names() == ["a/b"]
        assert destination.read("a/b") == b"content"
        endpoint = store.environment["S3_ENDPOINT_URL"]
    assert os.environ.get("S3_ENDPOINT_URL") == before
    host, port = endpoint.removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0


def test_the_corpus_is_real_heavy_tailed_and_the_same_each_time(tmp_path: Path) -> None:
    texts = gather(2 << 20)
    assert texts == gather(2 << 20)
    assert len(texts) == len(set(texts))
    sizes = np.array([len(text) for text in texts])
    assert 2 << 20 <= sum(len(text.encode()) for text in texts) < 3 << 20
    assert max(len(text.encode()) for text in texts) <= 2 << 16  # a lane is four times as large
    assert sizes.max() > 10 * np.median(sizes)
    write_parquet(texts, tmp_path / "out", files=3)
    read = [
        text
        for file in sorted((tmp_path / "out").iterdir())
        for text in pq.read_table(file)["text"].to_pylist()
    ]
    assert read == texts


def fields(documents: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Documents joined in one row."""
    labels = [torch.cat((torch.tensor([-100]), document[1:])) for document in documents]
    return {
        "input_ids": torch.cat(documents)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(len(d)) for d in documents])[None],
        "document_ids": torch.cat(
            [torch.full((len(d),), i, dtype=torch.int32) for i, d in enumerate(documents)]
        )[None],
    }


def test_the_models_loss_on_a_packed_row_equals_its_documents_alone() -> None:
    torch.manual_seed(1)
    model = GPT(1000, width=32, layers=2, heads=2)
    documents = [torch.randint(0, 1000, (length,)) for length in (17, 5, 40, 1)]
    packed = model(fields(documents)) * (sum(map(len, documents)) - len(documents))
    alone = sum(model(fields([d])) * (len(d) - 1) for d in documents if len(d) > 1)
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


def test_mosaicml_streaming_reads_the_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 500, n).astype(np.uint16) for n in (1, 300, 7, 255, 256, 9, 400)]
    write_mds(documents, tmp_path / "mds", 1 << 10)
    shards = json.loads((tmp_path / "mds" / "index.json").read_text())["shards"]
    read = []
    with streaming_module("base.format.mds.reader") as module:
        for shard in shards:
            reader = module.MDSReader.from_json(str(tmp_path / "mds"), None, shard)
            read += [reader[number]["tokens"] for number in range(shard["samples"])]
    assert len(shards) > 1
    assert [each.tolist() for each in read] == [each.tolist() for each in documents]


def test_training_from_a_checkpoint_repeats_batches_and_losses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 400, 300)
    documents = [rng.integers(0, 500, length).astype(np.uint16) for length in lengths]
    write_mds(documents, tmp_path / "mds", 1 << 26)

    def job(name: str) -> Job:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return Job(
            folder=str(folder),
            cache=str(tmp_path / "cache"),
            url=str(tmp_path / "mds"),
            vocab_size=500,
            seq_len=128,
            batch_tokens=256,
            workers=0,
            steps=12,
            checkpoint_every=100,
            threads=1,
        )

    def take(training: Training, steps: int) -> list[tuple[str, float]]:
        taken = []
        for batch in training.batches():
            taken.append((digest_of(batch), training.learn(batch)))
            if len(taken) == steps:
                break
        return taken

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = take(Training(job("whole")), 12)
        first = Training(job("broken"))
        begun = take(first, 7)
        first.save()
        second = Training(job("broken"))
        second.restore()
        assert second.step == 7
        assert begun + take(second, 5) == whole
    finally:
        torch.set_num_threads(threads)


def start_demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--fast", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "STREAMPACK_TEST": str(tmp_path)},
        # A shell's background jobs ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_the_demo_names_its_missing_parts(tmp_path: Path) -> None:
    process = start_demo(tmp_path, "--steps", "3")
    output, _ = process.communicate()
    assert process.returncode == 1
    assert "--steps 24" in output
    assert gone(tmp_path) == []


def left_behind(tmp_path: Path) -> list[str]:
    """Processes that inherited the mark in the environment, whoever their parent is now."""
    mark = f"STREAMPACK_TEST={tmp_path}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


def gone(tmp_path: Path) -> list[Any]:
    deadline = time.monotonic() + 20
    while (left := left_behind(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    # Which process compiles the kernels is marked there by any program that uses the package.
    kept = f".streampack-{os.getuid()}-"
    return [*left, *(path for path in (tmp_path / "tmp").iterdir() if kept not in path.name)]


def test_the_demo_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    process = start_demo(tmp_path, "--steps", "24")
    output, _ = process.communicate(timeout=300)
    words = " ".join(output.split())
    assert process.returncode == 0, output
    assert "was killed by signal 9" in words
    assert "all 24 are equal to the bit to an uninterrupted pass" in words
    assert re.search(r"every one of [\d,]+ tokens came exactly once from all three", words)
    for packer in ("BestFit", "Concat", "Pad"):
        assert packer in words
    packed, once, same = (line.strip() for line in output.splitlines()[-3:])
    used, padded = map(float, re.findall(r"([\d.]+) ?%", packed))
    assert used > 98 > 90 > padded  # the corpus goes by the machine
    assert re.fullmatch(r"Each of [\d,]+ tokens came exactly once, from .* alike\.", once)
    assert same.startswith("A worker and the whole job were killed; all 24 batches are those of")
    assert gone(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_of_training_the_demo_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start_demo(tmp_path)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "tmp").glob("*/training/log.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert gone(tmp_path) == []
