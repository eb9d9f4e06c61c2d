"""A dry run of one lane: its rows, computed from document lengths alone.

The window works as in a real run, round by round: fill, plan, choose, advance. The documents are
zeros, so a dry run costs planning and one copy; it needs no source, no tokenizer and no batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import (
    NO_FIELDS,
    Documents,
    Fields,
    make_origin,
    offsets_of,
    ranges_of,
)
from streampack.limits.balancing import Balance
from streampack.packing import Packer, Plan
from streampack.window.config import WindowConfig
from streampack.window.entries import Entries
from streampack.window.planned import PlannedWindow
from streampack.window.window import Window

BLOCK = 256  # documents admitted at once, about as many as in a source's block


class DryRun(NamedTuple):
    """The rows of a lane, and slots of the missing rows of its batches.

    Attributes:
        plan: the rows in order of delivery; `dropped` counts the tokens outside every row.
        missing: slots of missing rows in the rounds before the last one.
        missing_at_end: slots of missing rows in the last round.
        before_end: used slots of the rows before the last round.
    """

    plan: Plan
    missing: int
    missing_at_end: int
    before_end: int


def stream_plan(
    lengths: NDArray[np.int64], packer: Packer, config: WindowConfig, **how: Any
) -> Plan:
    """Return the rows that a lane gives for documents of `lengths` (N,), as one plan.

    See `dry_run`.
    """
    return dry_run(lengths, packer, config, **how).plan


def dry_run(
    lengths: NDArray[np.int64],
    packer: Packer,
    config: WindowConfig,
    *,
    batch_tokens: int,
    seed: int = 0,
    balance: Balance | None = None,
    weights: Fields = NO_FIELDS,
) -> DryRun:
    """Run a lane on documents of `lengths` (N,).

    `weights` maps each further document field that the packer uses to its values (N,).

    Raises:
        ConfigError: the window is too small for a batch.
        PlanError: a document is longer than a row and the packer's overflow is "error".
    """
    config = config.resolve(packer, batch_tokens)
    window = Window(
        config,
        packer,
        batch_tokens=batch_tokens,
        seed=seed,
        schedule_seed=seed,
        choice=balance,
    )
    emitted: list[_Emitted] = []
    missing = [0]
    serial, step, final = 0, 0, False
    while not final:
        serial, final = _fill(window, lengths, weights, serial)
        planned = window.plan(final=final, step=step)
        emitted.append(_emitted(planned, window.entries))
        widths = planned.plan.seq_len[planned.rows[planned.batches[:-1]]]
        missing.append(int(((planned.rows_per_batch - np.diff(planned.batches)) * widths).sum()))
        step += len(planned.batches) - 1
        if not final:
            window.advance(planned)
    sizes, seq_len, document, start, stop, overlap, eos, pad = (
        np.concatenate(parts) for parts in zip(*emitted, strict=True)
    )
    covered = np.zeros(len(lengths), dtype=np.int64)
    np.add.at(covered, document, stop - start - overlap)
    plan = Plan(
        row_offsets=offsets_of(sizes),
        seq_len=seq_len,
        document=document,
        start=start,
        stop=stop,
        overlap=overlap,
        insert_eos=eos,
        pad_after=pad,
        dropped=np.asarray(lengths - covered, dtype=np.int64),
    )
    rows_before_end = sum(len(part[0]) for part in emitted[:-1])
    before_end = int(plan.row_fill()[:rows_before_end].sum())
    return DryRun(plan, sum(missing[:-1]), missing[-1], before_end)


#: Row sizes, row lengths, and the segments' document, start, stop, overlap, EOS and padding.
_Emitted = tuple[NDArray[np.generic], ...]


def _fill(
    window: Window, lengths: NDArray[np.int64], weights: Fields, serial: int
) -> tuple[int, bool]:
    """Admit documents from `serial` on; return the next serial, and True at the end."""
    while window.wants:
        if serial == len(lengths):
            return serial, True
        block = lengths[serial : serial + BLOCK]
        fields = {name: values[serial : serial + BLOCK] for name, values in weights.items()}
        offsets = offsets_of(block)
        tokens = np.zeros(int(offsets[-1]), dtype=np.uint16)
        serials = np.arange(serial, serial + len(block), dtype=np.int64)
        origin = make_origin(0, serials)
        documents = Documents(tokens, offsets, origin, document_fields=fields)
        taken, full = window.admit(documents, serials)
        serial += taken
        if full:
            break
    return serial, False


def _emitted(planned: PlannedWindow, entries: Entries) -> _Emitted:
    """Return the delivered rows of a round, with offsets from the beginning of each document."""
    plan, rows = planned.plan, planned.rows
    sizes = np.diff(plan.row_offsets)[rows]
    index = ranges_of(plan.row_offsets[rows], sizes)
    document = plan.document[index]
    begin = entries.start[document]
    return (
        sizes,
        plan.seq_len[rows],
        entries.serial[document],
        plan.start[index] + begin,
        plan.stop[index] + begin,
        plan.overlap[index],
        plan.insert_eos[index],
        plan.pad_after[index],
    )
