"""The `streampack` command line. The library works without the packages that it needs."""

from __future__ import annotations

import sys

from streampack.errors import StreampackError
from streampack.extras import pip_command

__all__ = ["main"]


def main() -> None:
    """Run the program.

    A `StreampackError` is printed on standard error, with exit status 1. Without the `[cli]` extra
    the program prints how to install it and exits with 1.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"streampack: the command line needs {error.name}, which is not installed; "
            f"run `{pip_command('cli')}`."
        )
    from streampack.cli.app import app

    try:
        app()
    except StreampackError as error:
        sys.exit(f"streampack: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
