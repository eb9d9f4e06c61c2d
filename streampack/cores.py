"""The number of cores that this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the cores of the machine that affinity and the quotas of its control groups leave."""
    if hasattr(os, "sched_getaffinity"):  # missing on macOS
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(_OWN_CGROUP, _CGROUPS)
    return cores if quota is None else max(min(cores, math.ceil(quota)), 1)


def _quota(cgroup: Path, root: Path) -> float | None:
    """Return the smallest quota of the process's control groups in cores; None without one.

    Args:
        cgroup: file that lists the groups of the process, ``id:controllers:path`` a line.
        root: folder where the hierarchies are mounted.
    """
    quotas = []
    with suppress(OSError):
        for line in cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            hierarchy = root / controllers if controllers else root
            group = hierarchy / path.lstrip("/")
            # In a container the path may be that outside; then the mount itself is the group.
            for folder in {group, *group.parents} - {*hierarchy.parents}:
                quotas += _quota_in(folder)
    return min(quotas, default=None)


def _quota_in(group: Path) -> list[float]:
    """Return the quota of one control group, in the files of version 2 or of version 1."""
    with suppress(OSError, ValueError):
        most, period = (group / "cpu.max").read_text().split()
        return [float(most) / float(period)]  # "max", which is no quota, raises ValueError
    with suppress(OSError, ValueError):
        most_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        return [most_us / period_us] if most_us > 0 else []
    return []
