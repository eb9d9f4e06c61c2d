"""The `streampack` program. The library itself works without the packages it needs."""

from __future__ import annotations

import sys

from streampack.errors import StreampackError
from streampack.extras import pip_command

__all__ = ["main"]


def main() -> None:
    """Run the program; exits with 1 and the two parts of a `StreampackError` on standard error.

    Without the `[cli]` extra it says how to install it and exits with 1.
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
