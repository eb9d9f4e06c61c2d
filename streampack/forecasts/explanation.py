"""Forecast from a sample how a run reads, packs, cuts and drops tokens, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.batch import PackedBatch
from streampack.errors import ConfigError
from streampack.forecasts.dry_run import dry_run, stream_plan
from streampack.forecasts.estimation import Forecast, forecast
from streampack.forecasts.sampling import Sample, sample
from streampack.lane.config import LaneConfig
from streampack.mixtures.source import sources_of
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import BestFitDecreasing, Packer, PackingStats, Pad
from streampack.packing.overflow import Overflow
from streampack.run.plan import RunPlan
from streampack.sources.indexed import InMemory
from streampack.sources.sharded import ShardedSource
from streampack.window.config import WindowConfig

if TYPE_CHECKING:
    from streampack.chats.losses import LongChatLosses
    from streampack.images.shares import MediaShares

BATCHES = 8  # batches packed to count loss tokens
WIDTH = 160  # columns of the example row
LINES = 10  # lines of the example row
#: Columns of the table of choices: their heads, and shares of `PackingStats`.
SHARES = {
    "used %": "utilisation",
    "cut %": "truncation_ratio",
    "lost %": "dropped_ratio",
    "twice %": "repetition_ratio",
}


@dataclass(frozen=True)
class Explanation:
    """Result of `PackedDataset.explain`; `str` formats it as one screen of text.

    Attributes:
        source: `repr` of the source.
        tree: the run as ``print(dataset.plan)`` shows it.
        files: number of files; 0 in memory.
        remote_bytes: size of the files on other machines.
        fetched_bytes: bytes of them that this process has fetched, for the sample and the first
            batches; less than a first run fetches if the cache had some of them.
        left_out: rows that the `where=` of each source leaves out, in words.
        sample: tokens of sampled documents, and counts of documents left out before packing.
        packer: packer of the run.
        batch_size: rows of the longest length in a batch.
        lanes: number of lanes.
        ranks: number of ranks that share the batches.
        epochs: epochs of the run; None is endless.
        composition: packing statistics of the sample, packed with the run's window.
        forecast: rows and steps of the run (of an epoch if it is endless), and tokens drawn from
            each source; None if the source does not know its size.
        loss_share: fraction of tokens with loss in the first batches, 0 to 1.
        choices: packing statistics of the sample under other packers, overflows and row lengths.
        chats: shares of the loss tokens of conversations that each overflow loses; None without
            conversations.
        media: films and sounds of the first documents: tokens per second, and the share lost.
        row: the first row as text; empty if no document fits a row.
    """

    source: str
    tree: str
    files: int
    remote_bytes: int
    fetched_bytes: int
    left_out: tuple[str, ...]
    sample: Sample
    packer: Packer
    batch_size: int
    lanes: int
    ranks: int
    epochs: int | None
    composition: PackingStats
    forecast: Forecast | None
    loss_share: float
    choices: tuple[tuple[Packer, PackingStats], ...]
    chats: LongChatLosses | None
    media: tuple[MediaShares, ...]
    row: str

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, JSON-able; fractions from 0 to 1, lengths in tokens."""
        lengths, forecast = self.sample.lengths, self.forecast
        return {
            "source": self.source,
            "files": self.files,
            "remote_bytes": self.remote_bytes,
            "fetched_bytes": self.fetched_bytes,
            "left_out": list(self.left_out),
            "documents": len(lengths),
            "empty_documents": self.sample.empty,
            "skipped": self.sample.skipped,
            "mean_length": float(lengths.mean()),
            "longest": int(lengths.max()),
            "lanes": self.lanes,
            "epochs": self.epochs,
            "rows": None if forecast is None else forecast.rows,
            "steps": None if forecast is None else forecast.steps.steps,
            "steps_error": None if forecast is None else forecast.steps.error,
            "loss_share": self.loss_share,
            "truncated": self.composition.documents_cropped - self.composition.documents_lost,
            "dropped": self.composition.documents_lost,
            **_figures(self.packer, self.composition),
            "sources": {
                str(draw.name): draw._asdict() for draw in (forecast.draws if forecast else ())
            },
            "caps": [cap._asdict() for cap in (forecast.caps if forecast else ())],
            "choices": [_figures(*choice) for choice in self.choices],
            "chats": None if self.chats is None else self.chats._asdict(),
            "media": [each._asdict() for each in self.media],
        }


def explain(
    plan: RunPlan,
    batches: Iterable[PackedBatch],
    documents: int,
    tokenizer: Any,
) -> Explanation:
    """Explain a run as `PackedDataset.explain`; `batches` are the corpus' first, for one rank."""
    config = plan.config
    sampled = sample(config, documents=documents)
    lengths, packer = sampled.lengths, config.packer
    if not lengths.any():
        raise ConfigError(
            "The sample must contain tokens, got none.",
            "Check the path and the name of the column that is read.",
            setting="source",
        )
    planned = dry_run(
        lengths, packer, config.window, batch_tokens=config.batch_tokens, weights=sampled.weights
    )
    missing = PackingStats(rows=planned.missing // packer.seq_lens[-1], slots=planned.missing)
    first = list(islice(batches, BATCHES))
    names = tokenizer or config.preparation.find("tokenizer")
    tokens = sum(batch.num_tokens for batch in first)
    sources = [part._inner for part in sources_of(config.source)]
    files = [s for s in sources if isinstance(s, ShardedSource) and not isinstance(s, InMemory)]
    remote = [source for source in files if "://" in source.manifest.paths[0]]
    return Explanation(
        source=repr(config.source),
        tree=str(plan),
        files=sum(len(source.manifest) for source in files),
        remote_bytes=sum(int(source.manifest.num_bytes.sum()) for source in remote),
        fetched_bytes=_fetched_bytes() if remote else 0,
        left_out=tuple(
            source.manifest.details["left_out"]
            for source in files
            if "left_out" in source.manifest.details
        ),
        sample=sampled,
        packer=packer,
        batch_size=config.batch_tokens // packer.seq_lens[-1],
        lanes=config.lanes,
        ranks=plan.ranks.world_size,
        epochs=config.epochs,
        composition=planned.plan.metrics(lengths) + missing,
        forecast=forecast(config, plan.topology),
        loss_share=sum(batch.num_loss_tokens for batch in first) / max(tokens, 1),
        choices=tuple((other, _made(other, config, lengths)) for other in _others(packer, lengths)),
        chats=_chats(config),
        media=_media(config),
        row="".join(_row(batch.show(names, color=False)) for batch in first[:1]),
    )


def _chats(config: LaneConfig) -> LongChatLosses | None:
    if not any(hasattr(source, "renders") for source in sources_of(config.source)):
        return None
    from streampack.chats.losses import long_chat_losses

    return long_chat_losses(config)


def _media(config: LaneConfig) -> tuple[MediaShares, ...]:
    if not any(hasattr(source, "media_planners") for source in sources_of(config.source)):
        return ()
    from streampack.images.shares import media_shares

    return media_shares(config)


def _fetched_bytes() -> int:
    from streampack.remote.first_fetch import first_fetch

    return first_fetch().num_bytes


def _others(packer: Packer, lengths: NDArray[np.int64]) -> list[Packer]:
    """Return usual alternatives: other overflows, packers for the same rows, other row lengths."""
    size = packer.seq_lens[-1]
    ways: dict[Overflow, None] = {packer.overflow: None, "split": None}
    if lengths.max() > size:
        ways |= {"truncate": None, "drop": None}
    ways.pop("error", None)
    overflow = next(iter(ways))
    packers: list[Packer] = [BestFitDecreasing(seq_len=size, overflow=way) for way in ways]
    for kind in packer_kinds().values():
        other = with_rows(kind, size).with_sample(lengths)
        packers.append(replace(other, overflow=overflow) if isinstance(other, Pad) else other)
    packers += [
        BestFitDecreasing(seq_len=n, overflow=overflow) for n in (size // 2, 2 * size) if n > 1
    ]
    return list({repr(other): other for other in packers if repr(other) != repr(packer)}.values())


def _made(packer: Packer, config: LaneConfig, lengths: NDArray[np.int64]) -> PackingStats:
    """Pack the sample with another packer, in batches of about as many tokens."""
    longest = packer.seq_lens[-1]
    batch_tokens = max(config.batch_tokens // longest, 1) * longest
    plan = stream_plan(lengths, packer, WindowConfig(), batch_tokens=batch_tokens)
    return plan.metrics(lengths)


def _figures(packer: Packer, stats: PackingStats) -> dict[str, Any]:
    shares = {name: getattr(stats, name) for name in SHARES.values()}
    return {
        "packer": type(packer).__name__,
        "seq_lens": list(packer.seq_lens),
        "overflow": packer.overflow,
        **shares,
        "documents_per_row": stats.concatenation_ratio,
        "mean_context": stats.mean_context,
    }


def _lines(report: Explanation) -> Iterator[str]:
    lengths, stats = report.sample.lengths, report.composition
    middle, many = np.percentile(lengths, (50, 99)).astype(int).tolist()
    yield report.tree
    yield ""
    if report.files:
        yield f"reads      {report.files:,} file{_s(report.files)}"
    if report.remote_bytes:
        yield (
            f"fetches    {report.fetched_bytes / 1e6:,.3g} MB so far, for this sample and the "
            f"first batches; up to {report.remote_bytes / 1e9:,.3g} GB in an epoch, by all "
            "machines together, and more where they share files that are read from their "
            "beginning: see docs/storage.md"
        )
    yield (
        f"documents  {len(lengths):,} in the sample: {lengths.mean():,.0f} tokens on average, half "
        f"up to {middle:,}, 99 % up to {many:,}, the longest {int(lengths.max()):,}"
    )
    yield from (f"where      {words}" for words in report.left_out)
    yield from (f"cap        {cap}" for cap in (report.forecast.caps if report.forecast else ()))
    if report.sample.empty or report.sample.skipped:
        broken = f"{report.sample.skipped:,} broken documents or shards"
        yield f"left out   {report.sample.empty:,} without a token, {broken}"
    rows = " or ".join(f"{size:,}" for size in report.packer.seq_lens)
    yield (
        f"rows       of {rows} tokens by {type(report.packer).__name__}, {report.batch_size} in a "
        f"batch; {stats.concatenation_ratio:.1f} documents in a row, {stats.utilisation:.2%} of "
        "the slots used, the rest is padding"
    )
    yield f"run        {_run(report)}"
    yield (
        f"tokens     {stats.dropped_ratio:.2%} lost ("
        f"{stats.documents_cropped - stats.documents_lost:,} documents truncated, "
        f"{stats.documents_lost:,} dropped), {stats.repetition_ratio:.2%} given twice; "
        f"{stats.truncation_ratio:.1%} of the documents cut into pieces"
    )
    yield f"loss       on {report.loss_share:.1%} of the tokens; in the row below between « and »"
    if report.chats is not None:
        yield f"chats      {report.chats}"
    yield from (f"media      {each}" for each in report.media)
    draws = report.forecast.draws if report.forecast else ()
    total = sum(draw.drawn for draw in draws)
    for draw in draws if len(draws) > 1 and total else ():
        yield (
            f"source     {draw.name}: {draw.drawn / total:.1%} of the tokens, {draw.weight:.1%} by "
            f"its weight; {draw.drawn / max(draw.epoch_tokens, 1):.3g} of its epochs"
        )
    for draw in draws:
        if draw.ends is not None:
            yield (
                f"warning    {draw.name} ends after {draw.ends:.0%} of the run, and the others "
                f'share its weight from there on; Mixture(..., epochs={{"{draw.name}": None}}) '
                'repeats it, at_end="stop" ends the run with it'
            )
    yield ""
    yield from _table([(report.packer, stats), *report.choices])
    yield ""
    yield report.row


def _run(report: Explanation) -> str:
    epochs = "endless; an epoch" if report.epochs is None else f"{report.epochs} epoch"
    head = f"{epochs}{_s(report.epochs or 1)}: "
    if report.forecast is None:
        return f"{head}unknown steps, for the source does not know its size"
    steps, error = report.forecast.steps
    return (
        f"{head}about {report.forecast.rows:,} rows in {steps:,} steps (within {error:,}) on "
        f"{report.ranks} rank{_s(report.ranks)}, from {report.lanes} lane{_s(report.lanes)} "
        "(parts of the corpus that are read side by side)"
    )


def _s(number: int) -> str:
    return "s"[number == 1 :]


def _row(shown: str) -> str:
    """Shorten the example row to `LINES` lines of at most `WIDTH` columns."""
    lines = shown.split("\nrow 1")[0].splitlines()
    lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]} ..." for line in lines]
    more = [f"  and {len(lines) - LINES} more"] if len(lines) > LINES else []
    return "\n".join(lines[:LINES] + more)


def _table(rows: Sequence[tuple[Packer, PackingStats]]) -> Iterator[str]:
    heads = [*SHARES, "docs/row", "context"]
    yield f"{'what a choice would change':<42}" + "".join(f"{head:>10}" for head in heads)
    for number, (packer, stats) in enumerate(rows):
        sizes = packer.seq_lens
        name = f"{type(packer).__name__}({sizes[0] if len(sizes) == 1 else sizes}"
        name += ")" if packer.overflow == "split" else f", {packer.overflow})"
        name += "" if number else ", this run"
        cells = [f"{100 * getattr(stats, share):.2f}" for share in SHARES.values()]
        cells += [f"{stats.concatenation_ratio:.1f}", f"{stats.mean_context:,.0f}"]
        yield f"{name:<42}" + "".join(f"{cell:>10}" for cell in cells)
