"""Files in an S3 store that is far away: ``python -m benchmarks.remote [JOB ...]``.

Readers are processes of their own with an empty cache. A proxy before the store
(`benchmarks.slow_store`) delays each request, limits the rate, and counts. With
``--bytes-per-s 2.5e6 --delay-s 0.6``, a twentieth of the rate and twenty times the delay, the
processor limits nothing. ``--docs`` keeps the tables in ``docs/benchmarks/``.

Jobs: the modules of this package tell their columns.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Iterable

from benchmarks import records, report
from benchmarks.remote import JOBS
from benchmarks.remote.far import far_store

_SMALL_MEGABYTES = [1.0]
_SMALL_COUNTS = {"epoch": [0.1], "images": [40]}


def main() -> None:
    """Run jobs one after the other, and print a table of each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the store and the readers too
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], metavar="JOB")
    parser.add_argument("--delay-s", type=float, default=0.03, help="of each request")
    parser.add_argument("--bytes-per-s", type=float, default=50e6, help="of all answers together")
    parser.add_argument("--megabytes", type=float, nargs="+", help="of a corpus")
    parser.add_argument("--files", type=int, help="of a corpus (first, line)")
    parser.add_argument(
        "--counts", type=float, nargs="+", help="of files, sources or images; GiB of an epoch"
    )
    parser.add_argument("--only", nargs="+", help="names of layouts")
    parser.add_argument("--trace", action="store_true", help="print waits and requests")
    parser.add_argument("--small", action="store_true", help="try the jobs")
    parser.add_argument("--docs", action="store_true", help="keep the tables in docs/benchmarks/")
    options = parser.parse_args()

    def layouts(names: Iterable[str]) -> list[str]:
        return [name for name in names if not options.only or name in options.only]

    options.layouts = layouts
    load, megabytes, counts = report.load_before(), options.megabytes, options.counts
    for job in options.jobs or JOBS:
        module = importlib.import_module(f"benchmarks.remote.{JOBS[job]}")
        options.job, options.megabytes, options.counts = job, megabytes, counts
        if options.megabytes is None:
            options.megabytes = getattr(module, "MEGABYTES", None)
            options.megabytes = _SMALL_MEGABYTES if options.small else options.megabytes
        if options.counts is None:
            options.counts = getattr(module, "COUNTS", None)
            options.counts = _SMALL_COUNTS.get(job, [3]) if options.small else options.counts
        elif job != "epoch":
            options.counts = [int(count) for count in options.counts]
        report.PRINTED.clear()
        rows = []
        with far_store(options) as store:
            for row in module.rows(store, options):
                rows.append(row)
                print(" | ".join(row), file=sys.stderr)
        title = (
            f"{store.store.name}, {options.delay_s * 1e3:g} ms away, {options.bytes_per_s / 1e6:g} "
            f"MB/s; {report.machine()}, {load}"
        )
        report.print_table(title, module.HEAD, rows)
        if options.docs:
            records.keep(f"remote {job}")
            records.write_page()


if __name__ == "__main__":
    main()
