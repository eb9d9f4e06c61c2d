"""Tables as Markdown."""

from __future__ import annotations

__all__ = ["table"]


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print one."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
