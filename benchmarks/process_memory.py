"""Memory of a process as the operating system counts it (Linux)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["resident_bytes", "status_mib"]

PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Anonymous resident memory of this one: without the page cache's pages of mapped shards."""
    size, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(size) - int(shared)) * PAGE_BYTES


def status_mib(field: str, process: int | str = "self") -> float:
    """A field of /proc/<process>/status in MiB; 0 where the system does not tell."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
