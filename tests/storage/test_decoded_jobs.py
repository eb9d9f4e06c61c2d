"""Jobs of several processes over files that cannot be cut: decoded once, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.whole_files import LAYOUTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WAIT_S = 300
LANES = 12
SHARDS = 2

JOB = """
import hashlib, json, logging, resource, sys
import torch.distributed as dist
from streampack import PackedDataset, PackedLoader, Topology, sources
from tests.support.whole_files import LAYOUTS, small_files_count
import streampack.storage.decoded, streampack.formats.parquet.source
import streampack.formats.arrow.source

name, folder, cache, rank, ranks, workers, lanes, file_bytes, out = sys.argv[1:]
def set_attribute(path, value):
    module, _, attribute = path.rpartition(".")
    setattr(sys.modules[module], attribute, value)
small_files_count(set_attribute)
logging.basicConfig(filename=folder + "/log", level=logging.INFO)
if int(file_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), resource.RLIM_INFINITY))
if int(ranks) > 1:
    dist.init_process_group(
        "gloo", init_method=f"file://{out}.store", rank=int(rank), world_size=int(ranks)
    )
source = LAYOUTS[name][1](folder + "/*" + name, storage=sources.Storage(cache_dir=cache))
dataset = PackedDataset(
    source, seq_len=512, batch_size=2, lanes=int(lanes), topology=Topology(int(rank), int(ranks))
)
found = []
for batch in PackedLoader(dataset, num_workers=int(workers)):
    ids = batch.input_ids.numpy().tobytes()
    found.append(hashlib.sha1(ids).hexdigest() if any(ids) else "")
with open(f"{out}.{rank}", "w") as file:
    json.dump(found, file)
"""


class Corpus:
    """Files of one layout, and jobs that read them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        write, _, codec = LAYOUTS[name]
        for number in range(SHARDS):
            write(folder / f"{number}-{name}", codec)

    def start(
        self, job: str, *, cache: str = "cache", ranks: int = 1, workers: int = 0, most: int = 0
    ) -> list[subprocess.Popen[str]]:
        """The processes of a job; `most` is the size that its files may have."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return [
            subprocess.Popen(
                [
                    str(argument)
                    for argument in (
                        sys.executable,
                        "-c",
                        JOB,
                        self.name,
                        self.folder,
                        self.folder / cache,
                        rank,
                        ranks,
                        workers,
                        LANES,
                        most,
                        self.folder / job,
                    )
                ],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank in range(ranks)
        ]

    def batches(self, job: str, processes: list[subprocess.Popen[str]]) -> list[str]:
        """Return the batches of a job that succeeds, in order."""
        for process in processes:
            _, output = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, output
        files = [self.folder / f"{job}.{rank}" for rank in range(len(processes))]
        found = [json.loads(file.read_text()) for file in files]
        return [batch for step in zip(*found, strict=True) for batch in step]

    def decoded(self) -> int:
        """Count the files that were decoded into the cache."""
        return (self.folder / "log").read_text().count("decoded into the cache")


@pytest.fixture(
    params=[
        "rows.parquet",
        "lines.jsonl.gz",
        "lines.jsonl.zst",
        "samples.tar.gz",
        "samples.tar.zst",
    ]
)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    return Corpus(request.param, tmp_path)


def full(batches: list[str]) -> list[str]:
    """Without the batches of padding at the end of a run."""
    return [batch for batch in batches if batch]


def test_a_job_decodes_each_shard_once_on_a_host(corpus: Corpus) -> None:
    job = corpus.start("job", ranks=2, workers=2)
    found = full(corpus.batches("job", job))
    assert corpus.decoded() == SHARDS
    alone = corpus.start("alone")
    assert full(corpus.batches("alone", alone)) == found
    assert corpus.decoded() == SHARDS


def test_jobs_that_share_a_cache_decode_once_and_one_may_be_killed_or_remove_it(
    corpus: Corpus,
) -> None:
    expected = corpus.batches("alone", corpus.start("alone", cache="own"))
    before = corpus.decoded()
    jobs = {name: corpus.start(name) for name in ("one", "two")}
    assert all(corpus.batches(name, job) == expected for name, job in jobs.items())
    assert corpus.decoded() == 2 * before

    shutil.rmtree(corpus.folder / "cache")
    (killed,), job = corpus.start("killed"), corpus.start("three")
    while killed.poll() is None and not [*(corpus.folder / "cache").glob("blocks/*/.*-2.lock")]:
        time.sleep(0.001)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    shutil.rmtree(corpus.folder / "cache", ignore_errors=True)
    assert corpus.batches("three", job) == expected


def test_on_a_full_disk_the_batches_are_the_same_or_the_error_is_named(corpus: Corpus) -> None:
    expected = corpus.batches("alone", corpus.start("alone", cache="own"))
    (process,) = corpus.start("full", most=1 << 17)
    _, output = process.communicate(timeout=WAIT_S)
    if process.returncode:
        assert "streampack.errors.StorageError" in output
    else:
        assert corpus.batches("full", [process]) == expected
        assert "cache_limit_bytes" in (corpus.folder / "log").read_text()
