"""The runs that were made, a JSON line each."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from streampack.errors import StateError

__all__ = ["Results"]


class Results:
    """Runs by arm and seed, of one protocol.

    Args:
        file: where `add` appends.
        protocol: digest of it; every line carries it.
        runs: the lines there.
    """

    def __init__(self, file: Path, protocol: str, runs: list[dict[str, Any]]) -> None:
        self.file, self.protocol, self.runs = file, protocol, runs

    @classmethod
    def read(cls, file: Path, protocol: str) -> Results:
        """Return the results in a file, or no results if it does not exist.

        Raises:
            StateError: a run of another protocol is in it.
        """
        lines = file.read_text().splitlines() if file.exists() else []
        runs = [json.loads(line) for line in lines]
        found = {run["protocol"] for run in runs}
        others = found - {protocol}
        if others:
            raise StateError(
                f"{file} holds runs of protocol {', '.join(sorted(others))}, and this is "
                f"{protocol}.",
                "Name another file with --results, or remove this one.",
            )
        return cls(file, protocol, runs)

    def has(self, arm: str, seed: int) -> bool:
        """Return True if the run was made."""
        return any(run["arm"] == arm and run["seed"] == seed for run in self.runs)

    def add(self, run: dict[str, Any]) -> None:
        """Append a run, with the protocol and the versions used."""
        made_on = {"torch": torch.__version__, "python": platform.python_version()}
        line = {"protocol": self.protocol, **run, **made_on}
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.runs.append(line)

    def of(self, arm: str, measure: str) -> dict[int, float]:
        """Return a measure of the arm's runs by seed."""
        runs = sorted(self.runs, key=lambda run: run["seed"])
        return {run["seed"]: run["measures"][measure] for run in runs if run["arm"] == arm}
