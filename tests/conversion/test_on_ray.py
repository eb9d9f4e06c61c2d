"""On two nodes of Ray: the bytes of one process, whatever dies, and the same command goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streampack.conversion.convert import convert_source
from streampack.errors import ConfigError
from tests.support.conversions import (
    OPTIONS,
    Dying,
    Slow,
    content,
    conversion,
    documents_of,
    written,
)  # fmt: skip
from tests.support.program import output_of
from tests.support.ray_nodes import Nodes, two_nodes

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="nodes have addresses of their own"),
]


@pytest.fixture(scope="module")
def whole(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    convert_source(conversion(lines, out), workers=1)
    return out


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or a head asks for its user's token
        with two_nodes() as running:
            yield running


def test_two_nodes_write_the_bytes_of_one_process_also_when_workers_die(
    lines: Path, whole: Path, tmp_path: Path, nodes: Nodes
) -> None:
    for at in range(10):
        out, marker = tmp_path / f"out-{at}", tmp_path / f"marker-{at}"
        job = conversion(lines, Dying(out, marker, at))
        convert_source(job, address=nodes.cluster.address)
        assert len([*marker.iterdir()]) == 1
        assert content(out) == content(whole)


def test_a_node_that_dies_at_any_of_ten_places_changes_nothing(
    lines: Path, whole: Path, tmp_path: Path, nodes: Nodes
) -> None:
    for at in range(1, 31, 3):
        out = tmp_path / f"out-{at}"
        nodes.join()
        over = threading.Event()

        def watch(out: Path = out, at: int = at, over: threading.Event = over) -> None:
            while not over.wait(0.005):
                if written(out) >= at:
                    nodes.kill()
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            convert_source(conversion(lines, Slow(str(out))), address=nodes.cluster.address)
        finally:
            over.set()
            watching.join()
        assert nodes.other is None
        assert content(out) == content(whole)


def test_a_command_that_is_killed_at_any_of_ten_places_goes_on_here_or_there(
    lines: Path, whole: Path, tmp_path: Path, nodes: Nodes
) -> None:
    nodes.join()
    for at in range(1, 31, 3):
        out = tmp_path / f"out-{at}"
        command = ["convert", str(lines), str(out), *OPTIONS]
        there = ["--ray", nodes.cluster.address]
        with subprocess.Popen([sys.executable, "-m", "streampack", *command, *there]) as process:
            while process.poll() is None and written(out) < at:
                time.sleep(0.001)
            process.kill()
        assert process.returncode < 0
        output_of(*command, *([] if at % 2 else there), "--workers", 2)
        assert documents_of(out) == documents_of(whole)


def test_an_address_without_a_cluster_is_a_named_error(lines: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_source(conversion(lines, tmp_path / "out"), address="127.0.0.1:1")
    assert caught.value.setting == "address"
