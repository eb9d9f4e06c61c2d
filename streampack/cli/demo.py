"""`streampack demo`: the demo of the checkout that the package lies in."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from streampack.errors import ConfigError


def demo(context: typer.Context) -> None:
    """Stream a real corpus from a real object store, train, break things, and resume exactly.

    Runs in a checkout of the repository; `streampack demo --help` there lists its options.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "demo" / "command.py").is_file():
        raise ConfigError(
            "The demo is not part of the installed package.",
            "`streampack demo` runs it only from a checkout of the repository.",
            "Clone the repository and run `bash scripts/demo.sh` in the clone.",
        )
    sys.path.insert(0, str(checkout))
    from demo.command import app

    app(context.args, prog_name="streampack demo")
