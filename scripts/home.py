"""Hooks of mkdocs: the home page is README.md; a notebook's links are those of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\n)*)\]\((?!\w+:)([^)\s]*)\)")


def home(page: str, url: str | None) -> str:
    """Return a page of the repository's root as one of the folder docs.

    Args:
        page: Markdown with links relative to the root.
        url: address of the repository for links to other files; None leaves their words alone.
    """

    def in_docs(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if target.startswith(("docs/", "#")):
            return f"{picture}[{words.removeprefix('docs/')}]({target.removeprefix('docs/')})"
        return words if url is None else f"[{words}]({url}/blob/HEAD/{target})"

    return _LINK.sub(in_docs, page)


def on_files(files: Any, config: Any) -> Any:
    """Add the home page."""
    from mkdocs.structure.files import File

    name = os.environ.get("GITHUB_REPOSITORY")  # set in workflows
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    text = home((ROOT / "README.md").read_text(encoding="utf-8"), name and f"{server}/{name}")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Lead the links of a notebook to pages; mkdocs does so for Markdown alone."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'href="([\w/]+)\.md"', r'href="../\1/"', html)
