"""On real Ray: the same shards as without, a worker that dies, a job that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streampack.corpus_order import run_job
from streampack.documents.blocks import Documents
from streampack.ordering import HashedNgrams
from tests.support.ordered_corpora import make_job, shards_of, write_topics

pytest.importorskip("ray")

pytestmark = pytest.mark.slow


class DiesOnce(HashedNgrams):
    """Ends the process that first uses it."""

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        marker = Path(os.environ["MARKER"])
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "in")


@pytest.mark.parametrize("search", ["exact", "faiss"])
def test_two_workers_and_one_give_the_shards_of_none_and_a_dead_one_is_replaced(
    corpus: Path, tmp_path: Path, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("MARKER", str(marker))
    run_job(make_job(corpus, tmp_path / "none", search=search), workers=0)
    for workers in (1, 2):
        out = tmp_path / f"workers-{workers}"
        job = make_job(corpus, out, search=search, embedder=DiesOnce() if workers == 2 else None)
        run_job(job, workers=workers)
        assert shards_of(out) == shards_of(tmp_path / "none")
    assert marker.exists()


def test_a_job_that_is_killed_in_every_stage_goes_on_to_the_same_shards(
    corpus: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "streampack", "order", str(corpus)]
    options = ["--shard-size", "100KB", "--parts", "3", "--search", "faiss"]
    options += ["--workers", "2"]
    subprocess.run([*command, str(tmp_path / "whole"), *options], check=True, capture_output=True)
    out = tmp_path / "killed"
    kills = 0
    work = out / ".streampack" / "order"
    for result in (
        "embed/00001.json",
        "index/trained.faiss",
        "search/*",
        "path/*",
        "part-*.parquet",
    ):
        process = subprocess.Popen(
            [*command, str(out), *options], start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        folder = out if result.startswith("part-") else work
        while process.poll() is None and not list(folder.glob(result)):
            time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        if not work.exists():
            break
    if work.exists():
        subprocess.run([*command, str(out), *options], check=True, capture_output=True)
    assert kills >= 3
    assert shards_of(out) == shards_of(tmp_path / "whole")
