"""The campaign: each attack in a process of its own, watched, for its share of the time."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.attacks import ATTACKS

START_S = 300.0  # kernels are compiled again, with bounds checked


@dataclass
class Leg:
    """What became of the cases of one attack."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)  # by number of the case


def run_attack(name: str, seed: int, seconds: float, folder: Path, first: int = 0) -> Leg:
    """Cases of an attack for so many seconds; a process that ends or hangs is a finding."""
    leg, case = Leg(), first
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        place = Path(tempfile.mkdtemp(dir=folder))
        child = _start(name, seed, case, place)
        assert child.stdout is not None
        running: int | None = None
        try:
            while True:
                left = START_S if deadline is None else deadline - time.monotonic()
                wait_s = START_S if running is None else ATTACKS[name].case_s
                ready, _, _ = select.select([child.stdout], [], [], max(0, min(wait_s, left)))
                if not ready and left <= wait_s and deadline is not None:
                    return leg  # time is up
                line = child.stdout.readline() if ready else ""
                if not line:
                    how = f"ended with {child.wait()}" if ready else f"no end in {wait_s:g} s"
                    at = case if running is None else running
                    leg.outcomes["finding"] += 1
                    errors = (place.parent / f"{place.name}.err").read_text()[-300:]
                    leg.findings[at] = f"the process: {how} {errors}"
                    case = at + 1
                    if running is None:
                        return leg  # it did not even start
                    break
                said = json.loads(line)
                if deadline is None:
                    deadline = time.monotonic() + seconds
                if "began" in said:
                    running = said["began"]
                    continue
                leg.outcomes[said["outcome"]] += 1
                if said["found"]:
                    leg.findings[said["ended"]] = said["found"]
        finally:
            with_its_group(child)
    return leg


def _start(name: str, seed: int, first: int, place: Path) -> subprocess.Popen[str]:
    kept = {"NUMBA_CACHE_DIR": str(Path(tempfile.gettempdir()) / "streampack-bounds-checked")}
    checked = {"NUMBA_BOUNDSCHECK": "1", **kept} if ATTACKS[name].memory else {}
    command = [sys.executable, "-m", "tests.campaign.child", name, str(seed), str(first)]
    with (place.parent / f"{place.name}.err").open("w") as errors:
        return subprocess.Popen(
            [*command, str(place)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **checked},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            bufsize=1,
            start_new_session=True,
        )


def with_its_group(child: subprocess.Popen[str]) -> None:
    """End a child and what it has started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--seconds", type=float, default=600.0, help="of all attacks together")
    parser.add_argument("--only", default="", help="names that begin so")
    parser.add_argument("--case", type=int, help="begin with this one")
    chosen = parser.parse_args()
    names = [name for name in ATTACKS if name.startswith(chosen.only)]
    share = chosen.seconds / max(1, len(names))
    print(f"seed {chosen.seed}, {share:.0f} s for each of {len(names)} attacks", flush=True)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name in names:
            leg = run_attack(name, chosen.seed, share, Path(folder), chosen.case or 0)
            total += leg.outcomes
            ended = ", ".join(f"{count} {word}" for word, count in sorted(leg.outcomes.items()))
            print(f"{name:28} {leg.outcomes.total():6} cases: {ended}", flush=True)
            for case, what in list(leg.findings.items())[:20]:
                print(f"    case {case}: {what}", flush=True)
    print(f"{total.total()} cases, {total['finding']} findings")
    sys.exit(bool(total["finding"]))


if __name__ == "__main__":
    main()
