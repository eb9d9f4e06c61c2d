"""The program as a user calls it, in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from streampack.cli.app import app


def output_of(*arguments: object, code: int = 0) -> str:
    """Return the output of a command that ends with `code`; an error of the command is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output
