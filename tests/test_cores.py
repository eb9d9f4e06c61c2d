"""Threads are as many as the process may use cores, not as many as the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streampack.cores import _quota


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_process_bound_to_one_core_counts_one() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from streampack.cores import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]


def test_the_smallest_quota_of_a_group_and_the_groups_around_it_counts(tmp_path: Path) -> None:
    group = tmp_path / "kubepods" / "pod" / "container"
    group.mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("0::/kubepods/pod/container\n")
    assert _quota(own, tmp_path) is None
    (group / "cpu.max").write_text("max 100000\n")
    assert _quota(own, tmp_path) is None
    (group.parent / "cpu.max").write_text("250000 100000\n")
    assert _quota(own, tmp_path) == 2.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")  # the mount, of a container's namespace
    assert _quota(own, tmp_path) == 1.5


def test_quotas_of_version_one_are_read_of_the_cpu_hierarchy_alone(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/job\n")
    group = tmp_path / "cpu,cpuacct" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert _quota(own, tmp_path) is None
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    assert _quota(own, tmp_path) == 3.0


def test_a_machine_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert _quota(tmp_path / "nothing", tmp_path) is None
