"""A process that reads: calls a function, tells its figures, and goes on when they are read.

Peers run in another environment, so this module and `peers` import nothing of streampack.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """Call ``["module:function", *arguments]``, which yields the name and figures of each stage."""
    name, *arguments = json.loads(sys.argv[1])
    module, _, function = name.partition(":")
    stages = getattr(importlib.import_module(f"benchmarks.remote.{module}"), function)(*arguments)
    for stage, figures in stages:
        print(json.dumps([stage, figures]), flush=True)
        sys.stdin.readline()
    os._exit(0)  # some peers keep threads


if __name__ == "__main__":
    main()
