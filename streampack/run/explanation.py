"""What a run will read, pack, cut, drop and learn, from a sample, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.packing import (
    BestFitDecreasing,
    Buckets,
    Composition,
    Concat,
    FirstFitDecreasing,
    Packer,
    Pad,
    Seamless,
)
from streampack.packing.overflow import Overflow
from streampack.run.dry_run import stream_plan
from streampack.run.estimation import Draw, Estimate, forecast, sample_lengths

BATCHES = 8  # that are packed to count loss tokens
ROW_CHARACTERS = 1200  # of the row that is shown
WIDTH = 100
#: Columns of the table of choices: their heads, and shares of `Composition`.
SHARES = {
    "used %": "utilisation",
    "cut %": "truncation_ratio",
    "lost %": "dropped_ratio",
    "twice %": "repetition_ratio",
}


@dataclass(frozen=True)
class Explanation:
    """What `PackedDataset.explain` found; `str` of it is one screen of text.

    Attributes:
        source: what is read, as its `repr`.
        lengths: (N,) int64, tokens of the documents of the sample.
        packer: of the run; batch_size: its longest rows in a batch; lanes: of the run.
        ranks: that share the batches.
        composition: of the sample, packed with the run's window.
        steps: of each rank, with an error; None if that is not known.
        draws: tokens of an epoch of each source and tokens drawn from it; [] if not known.
        loss_share: tokens with loss over tokens, of the first batches, 0 to 1.
        choices: other packers and row lengths, and what they make of the sample planned at once.
        row: the first row as text.
    """

    source: str
    lengths: NDArray[np.int64]
    packer: Packer
    batch_size: int
    lanes: int
    ranks: int
    composition: Composition
    steps: Estimate | None
    draws: tuple[Draw, ...]
    loss_share: float
    choices: tuple[tuple[Packer, Composition], ...]
    row: str

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, JSON-able; shares from 0 to 1, lengths in tokens."""
        return {
            "source": self.source,
            "documents": len(self.lengths),
            "mean_length": float(self.lengths.mean()),
            "longest": int(self.lengths.max()),
            "lanes": self.lanes,
            "steps": None if self.steps is None else self.steps.steps,
            "steps_error": None if self.steps is None else self.steps.error,
            "loss_share": self.loss_share,
            **_figures(self.packer, self.composition),
            "sources": {str(draw.name): [draw.epoch_tokens, draw.drawn] for draw in self.draws},
            "choices": [_figures(*choice) for choice in self.choices],
        }


def explain(
    config: LaneConfig, topology: Topology, batches: Iterable[Any], documents: int, tokenizer: Any
) -> Explanation:
    """See `PackedDataset.explain`; `batches` are the first ones of the corpus, as one rank's."""
    lengths = sample_lengths(config, documents=documents)
    if not len(lengths) or not lengths.any():
        raise ConfigError(
            "The sample holds no token.",
            "Check the path and the name of the column that is read.",
            setting="source",
        )
    packed = stream_plan(lengths, config.packer, config.window, batch_tokens=config.batch_tokens)
    found = forecast(config, topology)
    first = list(islice(batches, BATCHES))
    tokens = sum(batch.num_tokens for batch in first)
    named = config.preparation.any_tokenizer if tokenizer is None else tokenizer
    shown = str(first[0].show(named)).split("\nrow 1")[0]
    return Explanation(
        source=repr(config.source),
        lengths=lengths,
        packer=config.packer,
        batch_size=config.batch_tokens // config.packer.seq_lens[-1],
        lanes=config.lanes,
        ranks=topology.world_size,
        composition=packed.metrics(lengths),
        steps=None if found is None else found.steps,
        draws=() if found is None else found.draws,
        loss_share=sum(batch.num_loss_tokens for batch in first) / max(tokens, 1),
        choices=tuple(
            (packer, packer.plan(lengths, final=True, seed=0).metrics(lengths))
            for packer in _others(config.packer, lengths)
        ),
        row=shown if len(shown) <= ROW_CHARACTERS else shown[:ROW_CHARACTERS] + " ...",
    )


def _others(packer: Packer, lengths: NDArray[np.int64]) -> list[Packer]:
    """What else is usual: other packers for the same rows, the default one for others."""
    size = packer.seq_lens[-1]
    overflow: Overflow = "split" if packer.overflow == "error" else packer.overflow
    fit = partial(BestFitDecreasing, overflow=overflow)
    found: list[Packer] = [
        fit(seq_len=size),
        FirstFitDecreasing(seq_len=size, overflow=overflow),
        Seamless(seq_len=size),
        Concat(seq_len=size),
        Pad(seq_len=size, overflow=overflow),
    ]
    if size >= 8:
        found.append(Buckets(seq_lens=(size // 4, size // 2, size)).with_sample(lengths))
    found += [fit(seq_len=n) for n in (size // 2, 2 * size) if n > 1]
    return [other for other in found if repr(other) != repr(packer)]


def _figures(packer: Packer, made: Composition) -> dict[str, Any]:
    shares = {name: getattr(made, name) for name in SHARES.values()}
    return {
        "packer": type(packer).__name__,
        "seq_lens": list(packer.seq_lens),
        **shares,
        "documents_per_row": made.concatenation_ratio,
        "mean_context": made.mean_context,
    }


def _lines(found: Explanation) -> Iterator[str]:
    lengths, made = found.lengths, found.composition
    middle, many = np.percentile(lengths, (50, 99)).astype(int).tolist()
    yield f"reads      {found.source:.{WIDTH}}"
    yield (
        f"documents  {len(lengths):,} in the sample: {lengths.mean():,.0f} tokens on average, half "
        f"up to {middle:,}, 99 % up to {many:,}, the longest {int(lengths.max()):,}"
    )
    rows = " or ".join(f"{size:,}" for size in found.packer.seq_lens)
    yield (
        f"rows       of {rows} tokens by {type(found.packer).__name__}, {found.batch_size} in a "
        f"batch; {made.concatenation_ratio:.1f} documents in a row, {made.utilisation:.2%} of the "
        "slots used, the rest is padding"
    )
    steps = "unknown: the run is endless, or its source does not know its size"
    if found.steps is not None:
        steps = (
            f"about {found.steps.steps:,} steps (within {found.steps.error:,}) on "
            f"{found.ranks} rank{'s'[found.ranks == 1 :]}, from {found.lanes} "
            f"lane{'s'[found.lanes == 1 :]} (parts of the corpus that are read side by side)"
        )
    yield f"run        {steps}"
    yield (
        f"tokens     {made.dropped_ratio:.2%} lost, {made.repetition_ratio:.2%} given twice; "
        f"{made.truncation_ratio:.1%} of the documents cut into pieces; {found.loss_share:.1%} of "
        "the tokens carry loss"
    )
    total = sum(draw.drawn for draw in found.draws)
    for draw in found.draws if len(found.draws) > 1 and total else ():
        epochs = draw.drawn / max(draw.epoch_tokens, 1)
        yield f"source     {draw.name}: {draw.drawn / total:.1%} of the tokens, {epochs:.3g} epochs"
    yield ""
    yield from _table([(found.packer, made), *found.choices])
    yield ""
    yield found.row


def _table(rows: Sequence[tuple[Packer, Composition]]) -> Iterator[str]:
    heads = [*SHARES, "docs/row", "context"]
    yield f"{'what a choice would change':<42}" + "".join(f"{head:>10}" for head in heads)
    for number, (packer, made) in enumerate(rows):
        sizes = packer.seq_lens
        name = f"{type(packer).__name__}({sizes[0] if len(sizes) == 1 else sizes})"
        name += "" if number else ", this run"
        cells = [f"{100 * getattr(made, share):.2f}" for share in SHARES.values()]
        cells += [f"{made.concatenation_ratio:.1f}", f"{made.mean_context:,.0f}"]
        yield f"{name:<42}" + "".join(f"{cell:>10}" for cell in cells)
