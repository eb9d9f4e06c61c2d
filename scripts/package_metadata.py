"""Hatch's metadata hook: the addresses of the project, and a README that a package index can show.

The repository is that of the workflow on GitHub, or git's `origin`. Where there is neither, the
package has no addresses, and its README no links to files of the repository.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\n)*)\]\((?!\w+:)([^)\s]*)\)")


def repository_url() -> str | None:
    """The https address of the repository, or None."""
    if "GITHUB_REPOSITORY" in os.environ:
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        return f"{server}/{os.environ['GITHUB_REPOSITORY']}"
    try:
        command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        origin = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[/:](.+?)(?:\.git)?/?", origin)
    return found and f"https://{found[1]}/{found[2]}"


def addresses(url: str | None) -> dict[str, str]:
    """The Project-URLs."""
    if url is None:
        return {}
    return {
        "Repository": url,
        "Documentation": f"{url}#documentation",
        "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }


def readme(page: str, url: str | None) -> str:
    """The page with absolute links to files; without an address, with their words alone."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if url is None or target.startswith("#"):
            return "" if picture else words
        return f"{picture}[{words}]({url}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return _LINK.sub(absolute, page)


class PackageMetadata(MetadataHookInterface):
    """See the module."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields that pyproject.toml calls dynamic."""
        url = repository_url()
        text = readme((ROOT / "README.md").read_text(encoding="utf-8"), url)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(url)
