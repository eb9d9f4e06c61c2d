"""Pages of docs/ whose measured parts are written by the commands that measure."""

from __future__ import annotations

from pathlib import Path

__all__ = ["markdown_table", "put_between"]


def put_between(page: Path, name: str, text: str) -> None:
    """Replace what is between `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.read_text().split(begin)
    _, tail = rest.split(end)
    page.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{tail}")


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A table in markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
