"""A machine of the cluster that vanishes from the network costs a minute and no document."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streampack.corpus_order import run_job
from tests.support.ordered_corpora import make_job, shards_of, write_parquet
from tests.support.two_hosts import HEAD, OTHER, can_make_hosts, two_hosts

pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
EMBEDDER = "tests.support.stuck_embedder:embed"
LONGEST_S = 300  # Ray alone notices after 430 s


@pytest.mark.slow
@pytest.mark.skipif(not can_make_hosts(), reason="needs network namespaces: root, and `ip`")
def test_a_node_cut_off_the_network_does_not_change_the_shards(
    tmp_path: Path,
) -> None:
    words = ["corpus", "of", "short", "texts", "in", "another", "order", "each", "time"]
    texts = [" ".join(words[i % 7 :] + words[: i % 5] * (i % 9)) for i in range(90)]
    corpus, stuck = write_parquet(tmp_path / "in", texts, files=3), tmp_path / "stuck"
    run_job(make_job(corpus, tmp_path / "alone", embedder=EMBEDDER, parts=6), workers=0)
    shared = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    shared["RAY_AUTH_MODE"] = "disabled"  # or a head asks for the token that its user may have
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus", "1"]
    ray += ["--object-store-memory", "100000000", "--disable-usage-stats"]
    with two_hosts() as hosts:
        for address, *options in (
            (HEAD, "--head", "--port", "6379", "--include-dashboard", "false"),
            (OTHER, "--address", f"{HEAD}:6379"),
        ):
            start = hosts.command(address, *ray, "--node-ip-address", address, *options)
            own = shared if address == HEAD else {**shared, "STUCK": str(stuck)}
            subprocess.run(start, env=own, check=True, capture_output=True, timeout=600)
        driver = hosts.command(
            HEAD, sys.executable, "-m", "streampack", "order", str(corpus),
            str(tmp_path / "cut"), "--parts", "6", "--shard-size", "20000", "--embedder", EMBEDDER,
            "--address", f"{HEAD}:6379",
        )  # fmt: skip
        with subprocess.Popen(driver, env=shared, stderr=subprocess.PIPE, text=True) as running:
            while running.poll() is None and not stuck.exists():
                time.sleep(0.1)
            hosts.cut()
            _, output = running.communicate(timeout=LONGEST_S)
    assert stuck.exists()
    assert running.returncode == 0, output[-2000:]
    assert shards_of(tmp_path / "cut") == shards_of(tmp_path / "alone")
