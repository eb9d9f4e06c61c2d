"""Sentences on a terminal, in lines of at most 80 columns; tables as all commands print them."""

from __future__ import annotations

import shutil
import textwrap

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 80  # columns


def say(console: Console, text: str, *, style: str | None = None) -> None:
    """Print a paragraph: wrapped on a terminal, and as it is where other programs read it."""
    shown = wrapped(text, console.width) if console.is_terminal else text
    console.print(shown, style=style, soft_wrap=True, highlight=False, markup=False)


def plain_table(space: int = 1) -> Table:
    """A table with one line below its head, and so many spaces after a column."""
    padding = (0, space, 0, 0)
    return Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)


def wrapped(text: str, columns: int | None = None) -> str:
    """A paragraph in lines for a terminal of so many columns, or for this one."""
    width = shutil.get_terminal_size().columns if columns is None else columns
    return textwrap.fill(text, min(width, WIDTH), break_long_words=False, break_on_hyphens=False)
