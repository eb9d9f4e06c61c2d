"""A Ray cluster that requires a token: the error names the missing setting; the remedy works."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.ordered_corpora import shards_of, write_topics
from tests.support.program import output_of

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

TOKEN = "c69a9b9e359cfa40487fc594509ed87bc9c287219c0f811a807846af330ee7b9"


def test_a_driver_without_the_token_of_a_cluster_gets_an_error_and_with_it_works(
    tmp_path: Path,
) -> None:
    corpus = write_topics(tmp_path / "in", count=60)
    plain = {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--head", "--block"]
    command += ["--node-ip-address", "127.0.0.1", "--port", address.partition(":")[2]]
    command += ["--num-cpus", "1", "--include-dashboard", "false", "--disable-usage-stats"]
    command += ["--object-store-memory", "100000000"]
    secret = {**plain, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    head = subprocess.Popen(
        command, env={**os.environ, **secret}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        assert head.stdout is not None
        lines = list(takewhile(lambda line: "Ray runtime started" not in line, head.stdout))
        assert head.poll() is None, "".join(lines)
        for environment in (plain, {**plain, "RAY_AUTH_MODE": "token"}):
            refused = order(corpus, tmp_path / "out", address, environment)
            assert refused.returncode == 1
            assert "RAY_AUTH_TOKEN" in refused.stderr
        done = order(corpus, tmp_path / "out", address, secret)
        assert done.returncode == 0, done.stderr
    finally:
        head.terminate()
        head.wait()
    output_of("order", corpus, tmp_path / "alone", "--workers", 0)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "alone")


def order(
    corpus: Path, out: Path, address: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streampack", "order", str(corpus), str(out)]
    return subprocess.run(
        [*command, "--address", address], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
