"""Draw the pictures of the pages: ``python -m scripts.pictures``.

    python -m scripts.pictures [--out docs]

Rows come from the packers themselves, bars from the figures in docs/benchmarks/. The pictures are
legible at the width of a phone, and their style follows the reader's light or dark mode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from streampack import PackedDataset, Topology, pack
from streampack.batch.tree_batch import TreeBatch

LENGTHS = (5, 3, 9, 2, 4, 6, 1, 8)  # the eight documents of the README
OF_DESIGN = (3, 5, 2, 6, 1, 4, 10, 2)  # the eight documents of docs/design.md
PROMPT, ANSWERS = [5, 6, 7], ([1, 2], [1, 3, 4], [8])  # the group of docs/trees.md
FIGURES = Path(__file__).parents[1] / "docs" / "benchmarks"
#: Measured layouts of docs/benchmarks/gpu.json, and their labels.
LAYOUTS = {
    "a document per row, padded to 2,048": "a document per row, padded",
    "sorted by length in 50 batches, as many rows as fit": "sorted by length, padded",
    "packed by best fit, FlexAttention": "packed by streampack",
}
ROW = 8
CELL = 13
COLOURS = (
    *("#8ecae6", "#ffd166", "#b7e4c7", "#f4acb7"),
    *("#cdb4db", "#f6bd60", "#a0c4ff", "#d0d48f"),
)
STYLE = """text{font:10px sans-serif;fill:#1f2328}.title{font-weight:bold;font-size:12px}
.id{fill:#1f2328}.bar{fill:#2f81f7}.other{fill:#8c959f}
.empty{fill:none;stroke:#8c959f;stroke-dasharray:2 2}
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


def batches(lengths: Sequence[int], batch_size: int) -> list[list[Row]]:
    """Return the batches of streampack, without rows of padding."""
    dataset = PackedDataset(
        [[i] * n for i, n in enumerate(lengths)],
        seq_len=ROW,
        batch_size=batch_size,
        shuffle=False,
        lanes=1,
        topology=Topology(),
    )
    found: list[list[Row]] = []
    for batch in dataset:
        rows = zip(batch.input_ids.tolist(), batch.document_ids.tolist(), strict=True)
        drawn = [
            [token if slot >= 0 else -1 for token, slot in zip(*row, strict=True)] for row in rows
        ]
        found.append([row for row in drawn if max(row) >= 0])
    return found


def packed() -> list[Row]:
    """Return the rows of streampack."""
    return [row for batch in batches(LENGTHS, 3) for row in batch]


def empty(rows: Sequence[Row]) -> int:
    """Return the number of slots without a token."""
    return sum(slot < 0 for row in rows for slot in row)


def cut(rows: Sequence[Row]) -> int:
    """Return the number of documents with parts in several rows."""
    return sum(sum(document in row for row in rows) > 1 for document in range(len(LENGTHS)))


def draw_rows(rows: Sequence[Row], x: int, y: int, first: int = 1) -> str:
    """Return a rectangle for each document of a row, with its number, from `first`, on it."""
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
                    f'<text class="id" x="{left + 3}" y="{top + 10}">{document + first}</text>'
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


def window_picture() -> str:
    """Return the eight documents of docs/design.md in a lane: two windows, three batches."""
    first, *others = batches(OF_DESIGN, 2)
    early = sorted({document for row in first for document in row})
    late = [document for document in range(len(OF_DESIGN)) if document not in early]
    parts, y = [], 12
    for number, (documents, made) in enumerate(((early, [first]), (late, others))):
        line = [document for document in documents for _ in range(OF_DESIGN[document])]
        parts += [
            text(4, y, f"window, round {number}: {len(line)} tokens", "title"),
            draw_rows([line], 4, y + 6, first=0),
        ]
        y += 36
        for rows in made:
            batch = 0 if number == 0 else 1 + made.index(rows)
            parts += [text(24, y, f"batch {batch}"), draw_rows(rows, 84, y - 10, first=0)]
            y += CELL * len(rows) + 6
        y += 10
    words = (
        f"A lane packs its window of {sum(OF_DESIGN[i] for i in early)} tokens, documents "
        f"{', '.join(map(str, early))}, into batch 0; in the next round documents "
        f"{', '.join(map(str, late))} become batches 1 and 2"
    )
    return picture(240, y - 10, words, *parts)


def tree_picture() -> str:
    """Return the group of docs/trees.md: as sequences, as a row of a tree, and who sees whom."""
    ids = [PROMPT + answer for answer in ANSWERS]
    lengths = [len(sequence) for sequence in ids]
    plan = pack(lengths, ids=ids, groups=[0] * len(ids), layout="tree", seq_len=ROW)
    (batch,) = plan.batches(ids)
    assert isinstance(batch, TreeBatch)
    (row,), (ends,) = batch.input_ids.tolist(), batch.tout.tolist()
    parts = [text(4, 12, f"{sum(lengths)} tokens", "title")]
    parts += [draw_tokens(sequence, 4, 18 + (CELL + 4) * i) for i, sequence in enumerate(ids)]
    parts += [text(4, 92, f"{len(row)} slots as a tree", "title"), draw_tokens(row, 4, 98)]
    parts += [text(150, 12, "a slot sees", "title")]
    for query, token in enumerate(row):
        for key in range(len(row)):
            fill = f'fill="{colour(token)}"' if key <= query < ends[key] else 'class="empty"'
            parts.append(
                f'<rect x="{150 + CELL * key}" y="{18 + CELL * query}" '
                f'width="{CELL - 1}" height="{CELL - 1}" rx="2" {fill}/>'
            )
    words = (
        f"Three answers to one prompt: {sum(lengths)} tokens as sequences, {len(row)} slots as a "
        "tree, in which each slot sees the slots on its path from the prompt"
    )
    return picture(260, 126, words, *parts)


def colour(token: int) -> str:
    """Return a colour of a token: one for the prompt, one for each other token."""
    others = sorted({token for answer in ANSWERS for token in answer})
    return COLOURS[0] if token in PROMPT else COLOURS[1 + others.index(token)]


def draw_tokens(ids: Sequence[int], x: int, y: int) -> str:
    """Return a square for each token, with its id."""
    return "\n".join(
        f'<rect x="{x + CELL * i}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" rx="2" '
        f'fill="{colour(token)}"/>'
        f'<text class="id" x="{x + CELL * i + 3}" y="{y + 10}">{token}</text>'
        for i, token in enumerate(ids)
    )


def draw_bar(share: float, x: int, y: int, words: str, kind: str = "bar") -> str:
    """Return a bar, 110 units long for a share of 1, with words behind it."""
    width = max(round(110 * share, 1), 0.5)
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="10" rx="1" class="{kind}"/>'
        f'<text x="{x + width + 4:g}" y="{y + 9}">{words}</text>'
    )


def throughput_picture() -> str:
    """Return the tokens that a model learns in a second, by the rows of its batches."""
    layouts = json.loads((FIGURES / "gpu.json").read_text())["layouts"]
    rates = {label: layouts[name]["tokens_per_s"] for name, label in LAYOUTS.items()}
    most, least = max(rates.values()), next(iter(rates.values()))
    shown = {
        label: f"{rate / 1000:.0f},000 ({rate / least:.1f} x)" for label, rate in rates.items()
    }
    parts = [text(4, 12, "tokens learnt a second", "title")]
    for number, (label, rate) in enumerate(rates.items()):
        y = 28 + 30 * number
        kind = "bar" if "streampack" in label else "other"
        parts += [text(4, y, label), draw_bar(rate / most, 4, y + 4, shown[label], kind)]
    words = "Tokens that a GPT-2 learns per second on an H200: " + "; ".join(
        f"{label}: {words}" for label, words in shown.items()
    )
    return picture(240, 106, words, *parts)


def rollouts_picture() -> str:
    """Return the share of sampled prompts that two queues train, by the length of the answer."""
    (table,) = json.loads((FIGURES / "records.json").read_text())["rollout_lengths"]
    parts = [
        text(4, 12, "prompts that are trained", "title"),
        '<rect x="4" y="19" width="10" height="10" class="bar"/>',
        text(18, 28, "windowed FIFO"),
        '<rect x="104" y="19" width="10" height="10" class="other"/>',
        text(118, 28, "first finished"),
    ]
    for number, (length, ours, other) in enumerate(table["rows"]):
        y = 36 + 26 * number
        parts.append(text(4, y + 14, length))
        for line, (share, kind) in enumerate(((ours, "bar"), (other, "other"))):
            parts.append(draw_bar(float(share[:-1]) / 100, 104, y + 11 * line, share, kind))
    words = "Share of the sampled prompts that are trained, by tokens of the answer: " + "; ".join(
        f"{length}: windowed FIFO {ours}, first finished {other}"
        for length, ours, other in table["rows"]
    )
    return picture(280, 38 + 26 * len(table["rows"]), words, *parts)


PICTURES = {
    "rows.svg": rows_picture,
    "window.svg": window_picture,
    "tree.svg": tree_picture,
    "throughput.svg": throughput_picture,
    "rollouts.svg": rollouts_picture,
}


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
