"""Prints the notes of a release from CHANGELOG.md: `python scripts/release_notes.py 0.1.0`.

It fails unless that is the version of the package and of the newest release in the changelog.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def release_notes(version: str, changelog: str, package: str) -> str:
    """The section of a version.

    Args:
        version: that is released.
        changelog: the text of CHANGELOG.md.
        package: the text of the file that holds `__version__`.

    Raises:
        ValueError: they do not agree on the version, or say nothing of it.
    """
    written = re.findall(r'^__version__ = "(.*)"$', package, re.MULTILINE)
    if written != [version]:
        raise ValueError(f"the package has version {written}, not {version}; change __version__")
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)[1:]
    heads = [head.split(" ")[0].strip("[]") for head in parts[::2]]
    sections = [section.strip() for section in parts[1::2]]
    if "Unreleased" in heads and sections[heads.index("Unreleased")]:
        raise ValueError(f'changes are "Unreleased"; name their section {version}')
    released = [head for head in heads if head != "Unreleased"]
    if released[:1] != [version]:
        newest = released[0] if released else "none"
        raise ValueError(f"the newest release in the changelog is {newest}, not {version}")
    notes = sections[heads.index(version)]
    if not notes:
        raise ValueError(f"the changelog says nothing of {version}")
    return notes


def main() -> None:
    """Print the notes of the version that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/release_notes.py VERSION")
    package = (ROOT / "streampack/__init__.py").read_text()
    try:
        notes = release_notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), package)
    except ValueError as error:
        sys.exit(f"release_notes: {error}")
    sys.stdout.write(notes + "\n")


if __name__ == "__main__":
    main()
