"""Draw the pictures of the pages: ``python -m scripts.pictures``.

    python -m scripts.pictures [--out docs]

Rows come from the packers themselves. The pictures are legible at the width of a phone, and their
style follows the reader's light or dark mode.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from streampack import PackedDataset, Topology

LENGTHS = (5, 3, 9, 2, 4, 6, 1, 8)  # the eight documents of the README
ROW = 8
CELL = 13
COLOURS = (
    *("#8ecae6", "#ffd166", "#b7e4c7", "#f4acb7"),
    *("#cdb4db", "#f6bd60", "#a0c4ff", "#d0d48f"),
)
STYLE = """text{font:10px sans-serif;fill:#1f2328}.title{font-weight:bold;font-size:12px}
.id{fill:#1f2328}.empty{fill:none;stroke:#8c959f;stroke-dasharray:2 2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.id{fill:#1f2328}}"""
Row = Sequence[int]  # a document's index for each slot, -1 for padding


def padded() -> list[Row]:
    """Return a row for each document, truncated or padded."""
    return [[i] * min(n, ROW) + [-1] * (ROW - n) for i, n in enumerate(LENGTHS)]


def concatenated() -> list[Row]:
    """Return the documents as one sequence, cut into rows."""
    ids = [i for i, n in enumerate(LENGTHS) for _ in range(n)]
    ids += [-1] * (-len(ids) % ROW)
    return [ids[start : start + ROW] for start in range(0, len(ids), ROW)]


def packed() -> list[Row]:
    """Return the rows of streampack."""
    documents = [[i] * n for i, n in enumerate(LENGTHS)]
    dataset = PackedDataset(
        documents, seq_len=ROW, batch_size=3, shuffle=False, topology=Topology()
    )
    rows: list[Row] = []
    for batch in dataset:
        for ids, slots in zip(batch.input_ids.tolist(), batch.document_ids.tolist(), strict=True):
            rows.append(
                [token if slot >= 0 else -1 for token, slot in zip(ids, slots, strict=True)]
            )
    return [row for row in rows if max(row) >= 0]


def empty(rows: Sequence[Row]) -> int:
    """Return the number of slots without a token."""
    return sum(slot < 0 for row in rows for slot in row)


def cut(rows: Sequence[Row]) -> int:
    """Return the number of documents with parts in several rows."""
    return sum(sum(document in row for row in rows) > 1 for document in range(len(LENGTHS)))


def draw_rows(rows: Sequence[Row], x: int, y: int) -> str:
    """Return a rectangle for each document of a row, with its number at its beginning."""
    parts = []
    for line, row in enumerate(rows):
        top, start = y + CELL * line, 0
        for document, slots in groupby(row):
            width = len(list(slots))
            left = x + CELL * start
            fill = 'class="empty"' if document < 0 else f'fill="{COLOURS[document]}"'
            parts.append(
                f'<rect x="{left}" y="{top}" width="{CELL * width - 1}" height="{CELL - 1}" '
                f'rx="2" {fill}/>'
            )
            if document >= 0:
                parts.append(
                    f'<text class="id" x="{left + 3}" y="{top + 10}">{document + 1}</text>'
                )
            start += width
    return "\n".join(parts)


def picture(width: int, height: int, words: str, *parts: str) -> str:
    """Return an SVG with a text alternative, twice as large as its unit where there is space."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{2 * width}" role="img" aria-label="{words}">',
            f"<title>{words}</title>",
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{words}</text>'


def rows_picture() -> str:
    """Return the eight documents of the README in the rows of three loaders."""
    one, two, three = padded(), concatenated(), packed()
    lost = sum(LENGTHS) - (len(one) * ROW - empty(one))
    panels = {
        "padded": (one, f"{empty(one)} of {len(one) * ROW} slots empty", f"{lost} token lost"),
        "concatenated": (two, f"{cut(two)} documents cut", "joined in attention"),
        "streampack": (three, f"{empty(three)} of {len(three) * ROW} slots empty", "kept apart"),
    }
    parts = []
    for number, (title, (rows, *lines)) in enumerate(panels.items()):
        x = 4 + 122 * number
        parts += [text(x, 12, title, "title"), draw_rows(rows, x, 18)]
        parts += [text(x, 137 + 13 * i, line) for i, line in enumerate(lines)]
    words = (
        f"Eight documents of {min(LENGTHS)} to {max(LENGTHS)} tokens in rows of {ROW}: "
        + "; ".join(f"{title}: {', '.join(lines)}" for title, (_, *lines) in panels.items())
    )
    return picture(364, 156, words, *parts)


PICTURES = {"rows.svg": rows_picture}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, and draw."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pictures")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    folder = parser.parse_args(arguments).out
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")
        print(f"{folder / name} drawn")


if __name__ == "__main__":
    main()
