"""The tables and pictures of docs/benchmarks.md.

    python -m benchmarks.performance [--only PART ...] [--rounds 3] [--tokens 10e9]

Measures the parts, keeps their figures in docs/performance/results.json beside those of parts that
are not measured now, and writes pictures and tables anew from that file: tables go between the
marks of docs/benchmarks.md. `--only` without a part measures nothing and writes them again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.page import put_between
from benchmarks.performance import costs, memory, stages, stall, throughput, utilisation
from benchmarks.performance.options import Options
from benchmarks.report import library_versions, load_before, machine

PARTS: dict[str, ModuleType] = {
    "stages": stages,
    "utilisation": utilisation,
    "costs": costs,
    "throughput": throughput,
    "stall": stall,
    "memory": memory,
}
OUT = Path(__file__).parent.parent.parent / "docs" / "performance"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parse(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    load = load_before()
    command = " ".join(["python -m benchmarks.performance", *arguments])
    with tempfile.TemporaryDirectory() as temporary:
        given = Options(
            folder=options.data or Path(temporary),
            scale=options.scale,
            rounds=options.rounds,
            seconds=options.seconds,
            tokens=int(options.tokens),
        )
        for name in PARTS if options.only is None else options.only:
            began = time.perf_counter()
            print(f"{name} ...", file=sys.stderr, flush=True)
            figures = PARTS[name].measure(given)
            results[name] = {
                "command": command,
                "machine": machine(),
                "load": load,
                "versions": library_versions(),
                "seconds": round(time.perf_counter() - began),
                "figures": json.loads(json.dumps(figures)),
            }
            file.write_text(json.dumps(results, indent=1) + "\n")
    write(results, out)


def write(results: dict[str, Any], out: Path) -> None:
    """Pictures into the folder; tables into the page beside it, or printed where there is none."""
    page = out.parent / "benchmarks.md"
    for name, found in results.items():
        text = PARTS[name].table(found["figures"])
        print(f"{text}\n")
        PARTS[name].draw(found["figures"], out / f"{name}.png")
        versions = ", ".join(f"{key} {value}" for key, value in found["versions"].items())
        on = f"{found['machine']}, {found['load']}"
        by = f"`{found['command']}` ({found['seconds']} s) on {on}; {versions}."
        picture = f"![{name}]({out.name}/{name}.png)"
        if page.exists():
            put_between(page, f"performance {name}", f"{picture}\n\n{text}\n\n{by}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance", description="Figures of docs/benchmarks.md."
    )
    add = parser.add_argument
    add("--only", nargs="*", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=2.0, help="of each rate")
    add("--scale", type=float, default=1.0, help="share of the documents")
    add("--tokens", type=float, default=1e9, help="of the stream that memory is read over")
    add("--data", type=Path, help="folder that keeps the workloads' files")
    add(
        "--out",
        type=Path,
        default=OUT,
        help="folder of the pictures, beside the page benchmarks.md",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
