"""`streampack demo`: the demo of the checkout that the package lies in."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from streampack.errors import ConfigError

_CHECKOUT = Path(__file__).resolve().parents[2]


def in_checkout() -> bool:
    """True if the package lies in a checkout of the repository, which has the demo."""
    return (_CHECKOUT / "demo" / "command.py").is_file()


def demo(context: typer.Context) -> None:
    """Stream a real corpus from a real object store, train, break things, and resume exactly.

    Runs in a checkout of the repository; `streampack demo --help` there lists its options.
    """
    if not in_checkout():
        raise ConfigError(
            "The demo is not part of the installed package.",
            "`streampack demo` runs it only from a checkout of the repository.",
            "Clone the repository and run `bash scripts/demo.sh` in the clone.",
        )
    sys.path.insert(0, str(_CHECKOUT))
    from demo.command import app

    app(context.args, prog_name="streampack demo")
