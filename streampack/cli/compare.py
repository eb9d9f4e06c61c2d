"""`streampack compare`: every strategy on a sample of a corpus, and which one to take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streampack.cli.named import dataset_of, packed_by, rows_of
from streampack.cli.options import (
    AnyCorpus,
    AsJson,
    Column,
    EndToken,
    Integers,
    Key,
    LossMask,
    TextField,
    TextTokenizer,
    TokensField,
)
from streampack.cli.picture import Curve, check_target, draw
from streampack.cli.say import WIDTH, plain_table, say
from streampack.forecast.comparison import (
    CLOSE_POINTS,
    Figures,
    measure,
    smallest_window,
    window_curve,
    window_rows,
)
from streampack.forecast.recommendation import Recommendation, recommend
from streampack.packing import BestFitDecreasing, Packer

if TYPE_CHECKING:
    from streampack.forecast.estimation import Estimate

SEQ_LENS = [2048, 4096, 8192]
#: Shares of the slots, the documents or the tokens, by the head of their column.
RATIOS = {
    "used\n%": "utilisation",
    "padded\n%": "padding_ratio",
    "docs\ncut %": "truncation_ratio",
    "lost\n%": "dropped_ratio",
    "repeat\n%": "repetition_ratio",
}
GROUPS = (
    'Lengths are those of whole groups, which BestFitDecreasing with overflow="drop" keeps whole.'
)


def compare(
    source: AnyCorpus,
    seq_len: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Row length to try; may be repeated. 2048, 4096 and 8192, or as a PackedDataset "
            "has.",
        ),
    ] = None,
    tokenizer: TextTokenizer = None,
    text: TextField = None,
    tokens: TokensField = None,
    column: Column = None,
    loss_mask: LossMask = None,
    key: Key = None,
    dtype: Integers = None,
    eos_id: EndToken = None,
    documents: Annotated[int, typer.Option(min=1, help="Size of the sample.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the sample and of packers that shuffle.")] = 0,
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")] = Path(
        "compare.png"
    ),
    as_json: AsJson = False,
) -> None:
    """Pack a sample of your corpus with every strategy, and say which one to take and why."""
    check_target(out)
    plain = BestFitDecreasing(seq_len=max(seq_len or SEQ_LENS), overflow="drop")
    dataset = dataset_of(
        source, tokenizer, eos_id, plain, text=text, tokens=tokens, column=column, key=key,
        dtype=dtype, loss_mask=loss_mask,
    )  # fmt: skip
    alone = {"seed": seed, "epochs": 1, "lanes": 1}
    batch_rows, own = rows_of(dataset), dataset.plan.config.packer
    if not seq_len:
        seq_len = SEQ_LENS if own is plain else [*own.seq_lens]
        plain = replace(plain, seq_len=max(seq_len))
    dataset = packed_by(dataset, plain, batch_rows, **alone)
    console = Console(quiet=as_json)
    from streampack.forecast.sample import sample_lengths  # imports torch, as the dataset does

    with console.status("reading"):
        lengths = sample_lengths(dataset.plan.config, documents=documents)
    with console.status("planning"):
        figures = measure(lengths, seq_len, seed=seed)
        found = recommend(lengths, figures)
        windows = window_rows(lengths, found.figures.seq_lens[-1])
        curves = [
            Curve(
                chosen.name,
                window_curve(lengths, packer, windows, seed=seed),
                chosen.composition.utilisation,
            )
            for chosen, packer in _drawn(figures, found)
        ]
    window = smallest_window(windows, curves[0].utilisation, curves[0].whole)
    with console.status("reading"):
        steps = packed_by(dataset, found.packer, batch_rows).estimate_steps()
    if dataset.plan.config.preparation.group is not None:
        found = replace(found, reasons=(*found.reasons, GROUPS))
    said = _Findings(lengths, figures, found, windows, window, curves[0], steps, batch_rows)
    draw(out, lengths, figures, found, windows=windows, curves=curves, window=window)
    if as_json:
        print(json.dumps(_as_dict(said)))
        return
    _say(console, said)
    say(console, f"The picture is in {out}.")


class _Findings(NamedTuple):
    """What is said: of the sample, of every strategy, of windows of the best, and of an epoch."""

    lengths: NDArray[np.int64]
    figures: list[Figures]
    found: Recommendation
    windows: list[int]
    window: int | None
    curve: Curve
    steps: Estimate | None
    batch_rows: int


def _say(console: Console, said: _Findings) -> None:
    lengths = said.lengths
    middle, many = np.percentile(lengths, (50, 99)).astype(int).tolist()
    say(
        console,
        f"{len(lengths):,} documents of {lengths.mean():,.0f} tokens on average "
        f"(half have up to {middle:,}, 99 % up to {many:,}, the longest {int(lengths.max()):,})",
    )
    narrow = min(console.width, WIDTH) if console.is_terminal else WIDTH
    Console(width=narrow).print(_table(said.figures, said.found))
    say(console, f"Take {said.found.code}.", style="bold")
    for sentence in _words(said):
        say(console, sentence)


def _as_dict(said: _Findings) -> dict[str, Any]:
    """What the words say, by name; shares from 0 to 1, lengths in tokens."""
    lengths, figures, found, windows, window, curve, steps, _ = said
    return {
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "strategies": [
            {
                "name": row.name,
                "seq_lens": list(row.seq_lens),
                **{name: getattr(row.composition, name) for name in RATIOS.values()},
                "documents_per_row": row.composition.concatenation_ratio,
                "mean_context": row.composition.mean_context,
                "documents_per_s": row.documents_per_second,
            }
            for row in figures
        ],
        "recommended": {"packer": found.code, "reasons": list(found.reasons)},
        "windows": [
            {"rows": rows, "utilisation": share}
            for rows, share in zip(windows, curve.utilisation, strict=True)
        ],
        "smallest_window_rows": window,
        "epoch_steps": None if steps is None else steps.steps,
        "epoch_steps_error": None if steps is None else steps.error,
    }


def _drawn(figures: list[Figures], found: Recommendation) -> list[tuple[Figures, Packer]]:
    """Strategies whose curves are drawn, the recommended one first, all of its row length."""
    others = [
        (other, other.packer)
        for other in figures
        if other.name in ("BestFitDecreasing", "FirstFitDecreasing", "Seamless")
        and other.seq_lens[-1] == found.figures.seq_lens[-1]
        and other is not found.figures
    ]
    return [(found.figures, found.packer), *others]


def _table(figures: list[Figures], found: Recommendation) -> Table:
    table = plain_table()
    table.add_column("all planned\nat once", no_wrap=True)
    for name in (*RATIOS, "docs/\nrow", "mean\ncontext", "M docs\nper s"):
        table.add_column(name, justify="right", no_wrap=True)
    before: tuple[int, ...] = ()
    for row in figures:
        if row.seq_lens != before:
            if before:
                table.add_section()
            rows = ", ".join(f"{size:,}" for size in row.seq_lens)
            head = f"rows of {rows}" if len(row.seq_lens) == 1 else "buckets"
            table.add_row(f"[bold]{head}[/bold]")
            before = row.seq_lens
        figure = row.composition
        table.add_row(
            row.name,
            *[f"{100 * getattr(figure, name):.2f}" for name in RATIOS.values()],
            f"{figure.concatenation_ratio:.1f}",
            f"{figure.mean_context:,.0f}",
            f"{row.documents_per_second / 1e6:.1f}",
            style="green" if row is found.figures else None,
        )
    return table


def _words(said: _Findings) -> list[str]:
    """Why it is recommended, which window, and how long an epoch is."""
    _, _, found, windows, window, curve, steps, batch_rows = said
    lines = list(found.reasons)
    whole = f"{100 * curve.whole:.2f} %"
    if window is None:
        best = max(curve.utilisation)
        lines.append(
            f"No window up to {windows[-1]:,} rows comes within {CLOSE_POINTS} points of planning "
            f"everything at once ({whole}); the best gives {100 * best:.2f} %."
        )
    else:
        reached = curve.utilisation[windows.index(window)]
        lines.append(
            f"A window of {window:,} rows is enough, window=WindowConfig(rows={window}): it uses "
            f"{100 * reached:.2f} %, planning everything at once {whole}."
        )
        at = windows.index(window)
        if at:
            lines.append(
                f"One of {windows[at - 1]} rows uses {100 * curve.utilisation[at - 1]:.2f} %."
            )
    rows = found.figures.composition.rows
    if 100 / rows > CLOSE_POINTS:
        lines.append(
            f"The sample fills {rows:,} rows only, so one row more or less is {100 / rows:.2f} "
            "points; a larger sample says more about windows."
        )
    if steps is not None:
        lines.append(
            f"An epoch has about {steps.steps:,} steps (within {steps.error:,}) of {batch_rows} "
            f"{'of the longest ' if len(found.figures.seq_lens) > 1 else ''}rows on one rank, and "
            "on several that number divided by theirs."
        )
    return lines
