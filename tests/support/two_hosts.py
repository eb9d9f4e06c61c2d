"""Two hosts of a network on one machine: network namespaces joined by a cable that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HEAD, OTHER = "198.51.100.1", "198.51.100.2"  # addresses that no network has (RFC 5737)


@dataclass(frozen=True)
class Hosts:
    """The hosts, by address.

    Attributes:
        names: of their namespaces.
    """

    names: Mapping[str, str]

    def command(self, address: str, *command: str) -> list[str]:
        """A command as it runs on the host of this address."""
        return ["ip", "netns", "exec", self.names[address], *command]

    def cut(self) -> None:
        """Take the other host off the network; no connection is closed or reset."""
        _ip("-n", self.names[OTHER], "link", "set", "cable", "down")


def can_make_hosts() -> bool:
    """Return True if this process may make network namespaces and has the program for it."""
    if shutil.which("ip") is None:
        return False
    name = f"streampack-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two hosts that reach each other and nothing else; their processes end with them."""
    hosts = Hosts({own: f"streampack-{os.getpid()}-{own[-1]}" for own in (HEAD, OTHER)})
    try:
        for name in hosts.names.values():
            _ip("netns", "add", name)
        head, other = hosts.names.values()
        _ip("link", "add", "cable", "netns", head, "type", "veth", "peer", "cable", "netns", other)
        for address, name in hosts.names.items():
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", name, "link", "set", link, "up")
        yield hosts
    finally:
        for name in hosts.names.values():
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in listed.stdout.split():
                subprocess.run(["kill", "-KILL", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*arguments: Any) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
