"""The error for a package of an extra that is not installed, with the pip command for it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

from streampack.errors import MissingPackageError


def missing_package(
    package: str,
    extra: str,
    instead: str = "",
    *,
    setting: str | None = None,
    path: str | None = None,
) -> MissingPackageError:
    """Return the error for a package that cannot be imported.

    Args:
        package: its name.
        extra: the extra that installs it.
        instead: the end of the remedy: how to do without the package.
        setting: the argument that needs it.
        path: the file or object that needs it.
    """
    return MissingPackageError(
        f"{package} is not installed.",
        f"Run `{pip_command(extra)}`{instead}.",
        setting=setting,
        path=path,
    )


def pip_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, with their version ranges.

    It names the packages, not ``streampack[extra]``, which an index need not have.
    """
    try:
        requirements = requires("streampack") or []
    except PackageNotFoundError:  # not installed: a checkout on PYTHONPATH
        return f'pip install ".[{extra}]" in the checkout'
    of_extra = re.compile(rf'^([^;]*[^;\s])\s*;.*\bextra\s*==\s*["\']{extra}["\']')
    packages = [match[1] for line in requirements if (match := of_extra.match(line))]
    return " ".join(["pip install", *(f'"{package}"' for package in packages)])
