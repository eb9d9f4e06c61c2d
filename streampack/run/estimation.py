"""Estimate the steps of a run, with an error, from a sample or from the reports of its lanes.

Before a run, from a sample:
  1. Read each source at up to four positions, or 16 if it is in memory, as the run reads it. This
     gives the tokens per unit of weight.
  2. Multiply by the weight of an epoch for its tokens; the shares give the tokens of a mixture.
  3. Pack the sample as a lane packs it. This gives the slots per token.
  4. Allow for unequal lanes: a run lasts as long as its longest lane.

Shards of `streampack convert` have a manifest with their tokens, which replaces step 2.

Cost: some thousand documents, read and tokenized. A small source is read whole; the estimate is
then exact, except for how the last rows are packed.

During a run with dealt sources, lanes report the tokens found in each part and the tokens still to
be delivered. An estimate from these reports reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable as AnyIterable
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from streampack.deals.report_channel import decode_reports
from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.packing.request import DocumentSizes
from streampack.run.dry_run import dry_run
from streampack.run.sampling import (
    SAMPLE_DOCUMENTS,
    SAMPLE_LANES,
    SAMPLE_TOKENS,
    begun,
    first_documents,
    joined,
    joined_sizes,
)
from streampack.sources.base import Source
from streampack.sources.converted import converted_tokens
from streampack.sources.iterable.indexed import InMemory
from streampack.sources.mixture import Mixture, sources_of
from streampack.sources.sharded import ShardedSource
from streampack.stages.ids import IDS_AS_THEY_ARE

if TYPE_CHECKING:
    from streampack.run.rank import RankRun

FINER = 4  # factor of positions, with fewer documents each, if seeking costs nothing
STEPS = 2000  # resolution of a simulated mixture
ENOUGH = 0.02  # fraction of an epoch read before an estimate uses lane reports
NOTABLE = 0.1  # fraction of a source's due tokens; sources may end a few steps apart by chance
_AS_THEY_ARE = [type(stage) for stage in IDS_AS_THEY_ARE]  # stages that keep all tokens
LAST_BATCH = 0.5  # expected empty fraction of a lane's last batch


class Estimate(NamedTuple):
    """Steps of each rank's loop over the whole run: `steps`, in most runs within `error`."""

    steps: int
    error: int


class Draw(NamedTuple):
    """Name of a source in a mixture, tokens of one epoch of it, and tokens that a run draws.

    `weight` is the share of tokens, 0 to 1, that the mixture assigns at its beginning. `ends` is
    the fraction of the run, 0 to 1, after which the source has ended and loses its share; None if
    it keeps the share to the end.
    """

    name: str | None
    epoch_tokens: float
    drawn: float
    weight: float
    ends: float | None


class Forecast(NamedTuple):
    """Steps of a run, rows of all its ranks, and tokens that it draws from each source."""

    steps: Estimate
    rows: int
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of one epoch of a source.

    Attributes:
        tokens: tokens of an epoch.
        error: standard error of `tokens`.
        chance: expected excess of the longest lane over the mean lane, as a fraction of the mean.
        sample: sizes of the sampled documents.
    """

    tokens: float
    error: float
    chance: float
    sample: DocumentSizes


def forecast(config: LaneConfig, topology: Topology) -> Forecast | None:
    """Estimate the steps of a whole run from a sample, including empty batches at its end.

    An endless run is simulated for one epoch, or for as many tokens as the sources of its mixture
    hold. Return None if the size of a source is unknown.
    """
    sizes = []
    for number, source in enumerate(sources_of(config.source)):
        size = _size_of(config, source, number)
        if size is None:
            return None
        sizes.append(size)
    drawn, ends = _drawn(config, [size.tokens for size in sizes])
    total = sum(drawn)
    shares = [tokens / total if total else 0.0 for tokens in drawn]
    epochs = [n / size.tokens if size.tokens else 0.0 for n, size in zip(drawn, sizes, strict=True)]
    error = math.hypot(*(n * size.error for n, size in zip(epochs, sizes, strict=True)))
    chance = math.hypot(*(share * size.chance for share, size in zip(shares, sizes, strict=True)))
    documents = joined([size.sample for size in sizes])
    plan, missing, missing_at_end, before_end = dry_run(
        documents.lengths,
        config.packer,
        config.window,
        batch_tokens=config.batch_tokens,
        weights=documents.weights,
    )
    sampled = max(int(documents.lengths.sum()), 1)
    slots_per_token = int(plan.seq_len.sum()) / sampled + missing / max(before_end, 1)
    # Batches of one key each: the last one of every key is not full.
    last = missing_at_end / config.batch_tokens
    last = last if last > 1 else LAST_BATCH
    of_lane = total * (1 + chance / 2) * slots_per_token / config.batch_tokens / config.lanes
    turns = config.lanes / topology.world_size
    relative = error / total if total else 0.0
    steps = Estimate(
        math.ceil((of_lane + last) * turns) if total else 0,
        # The last rows of a lane, and of a sample, may pack better or worse than the mean.
        math.ceil((2 * relative + chance + 0.01) * of_lane * turns + max(last, 1) * turns),
    )
    names: list[str | None] = [None]
    weights = [1]
    if isinstance(config.source, Mixture):
        names = list(config.source.sources)
        weights = config.source.shares.rates(0, [True] * len(names))
    held, asked = [size.tokens for size in sizes], [weight / sum(weights) for weight in weights]
    rows = round(total * plan.num_rows / sampled)
    return Forecast(steps, rows, tuple(map(Draw, names, held, drawn, asked, ends)))


def estimate_steps(config: LaneConfig, topology: Topology) -> Estimate | None:
    """Return the steps of `forecast`; None for an endless run."""
    steps = None if config.epochs is None else forecast(config, topology)
    return None if steps is None else steps.steps


#: Estimates from a sample, by run: it is read once.
_sampled: WeakKeyDictionary[RankRun, Estimate | None] = WeakKeyDictionary()


def estimate_of(run: RankRun) -> Estimate | None:
    """Estimate the steps of a run; see `PackedLoader.estimate_steps`."""
    plan, states = run.plan, run.state.states().values()
    estimate = steps_as_found(plan.config, plan.topology, states)
    if estimate is None and _sampled.get(run) is None:
        _sampled[run] = estimate_steps(plan.config, plan.topology)
    return estimate or _sampled.get(run)


def steps_as_found(
    config: LaneConfig, topology: Topology, states: AnyIterable[Mapping[str, Any] | None]
) -> Estimate | None:
    """Estimate the steps of a whole run from the reports in the states of some of its lanes.

    Return None without enough reports: less than a fiftieth of an epoch is read, or a source is
    not dealt.
    """
    rule, sources = config.dealing, sources_of(config.source)
    stops = isinstance(config.source, Mixture) and config.source.at_end == "stop"
    if rule is None or stops or len(rule.lines) != len(sources):
        return None
    saved = [decode_reports(state["reports"]) for state in states if state]
    # The latest reports of each lane: [deal, line, *Report] for every line.
    last = np.array([reports[-len(sources) :] for reports in saved if reports], dtype=np.float64)
    if not len(last):
        return None
    numbers, seen = last[:, 0, 0], last[:, :, 2:]
    total = error = 0.0
    for i, line in enumerate(rule.lines.values()):
        until, tokens = seen[:, i, 0], seen[:, i, 2]
        read = float(until.sum()) * rule.lanes / len(last) / line.weight
        if read < ENOUGH:
            return None
        rates = tokens[until > 0] / until[until > 0]
        weight = line.weight * line.epochs
        total += float(tokens.sum() / until.sum()) * weight
        unread = max(1 - read, 0.0)  # fraction of an epoch; later epochs repeat it
        error += float(rates.std()) / math.sqrt(len(rates)) * unread * weight
    delivered = float((seen[:, :, 2] - seen[:, :, 1]).sum())
    batches = float((numbers * rule.every + 1).sum())
    if delivered <= 0:
        return None
    of_lane = total * batches / delivered / config.lanes
    of_lane *= config.packer.batch_share(math.ceil(of_lane), schedule_seed=config.seed)
    turns = config.lanes / topology.world_size
    return Estimate(
        math.ceil((of_lane + LAST_BATCH) * turns),
        math.ceil((2 * error / total + 0.004) * of_lane * turns + 1.5 * turns),
    )


def _drawn(config: LaneConfig, sizes: list[float]) -> tuple[list[float], list[float | None]]:
    """Return tokens drawn from each source, with `sizes` tokens per epoch, and `Draw.ends`."""
    mixture, none = config.source, [None] * len(sizes)
    if not isinstance(mixture, Mixture):
        return [(config.epochs or 1) * sizes[0]], [*none]
    epochs = mixture.source_epochs(config.epochs)
    wanted = [math.inf if n is None else n * size for n, size in zip(epochs, sizes, strict=True)]
    finite = [tokens for tokens in wanted if tokens < math.inf]
    drawn, due, at = [0.0] * len(sizes), [0.0] * len(sizes), 0.0
    ends: list[float | None] = [*none]
    step = max((sum(finite) or sum(sizes)) / STEPS, 1.0)
    while config.epochs is not None or at < sum(sizes):
        active = [has < most for has, most in zip(drawn, wanted, strict=True)]
        waited_for = [on for on, most in zip(active, wanted, strict=True) if most < math.inf]
        ended = config.epochs is not None and not any(waited_for)
        if ended or (mixture.at_end == "stop" and not all(active)):
            break
        rates = mixture.shares.rates(int(at), active)
        if not any(rates):
            break
        asked = mixture.shares.rates(int(at), [True] * len(sizes))
        for i, rate in enumerate(rates):
            drawn[i] = min(drawn[i] + step * rate / sum(rates), wanted[i])
            due[i] += step * asked[i] / sum(asked)
            if not active[i] and ends[i] is None:
                ends[i] = at
        at += step
    for i, end in enumerate(ends):
        short = end is not None and due[i] - drawn[i] > NOTABLE * due[i]
        ends[i] = end / at if short and end is not None else None
    return drawn, ends


# ------------------------------------------------------------------ one source


def _size_of(config: LaneConfig, source: Source, number: int) -> _Size | None:
    """Estimate the size of one epoch of a source; None if it is unknown."""
    if source.once:
        return None
    preparation = config.preparation
    of_source = replace(preparation, stages=preparation.stages[number : number + 1])
    alone = replace(config, source=source, preparation=of_source, epochs=1, order=None)
    finer = FINER if isinstance(source.inner, InMemory) else 1
    places = finer * min(SAMPLE_LANES, source.max_lanes() or SAMPLE_LANES)
    alone = replace(alone, lanes=places)
    samples = [_place(alone, place, finer) for place in range(places)]
    sample_of = joined([sizes for _, _, sizes in samples])
    lengths = sample_of.lengths
    if all(whole for _, whole, _ in samples):
        tokens = float(lengths.sum())
        return _Size(tokens, 0.0, _chance(config, lengths, len(lengths)), sample_of)
    if not isinstance(source.inner, ShardedSource):
        return None
    read = np.array([units for units, _, _ in samples], dtype=np.float64)
    held = np.array([sample.lengths.sum() for _, _, sample in samples], dtype=np.float64)
    if not read.all():
        rough = source.estimate_tokens()
        return None if rough is None else _Size(float(rough), rough / 2, 0.0, sample_of)
    per_unit = held.sum() / read.sum()
    residual = float(((held - per_unit * read) ** 2).sum())
    units = float(source.inner.weight)
    spread = math.sqrt(places / max(places - 1, 1) * residual) / read.sum() * units
    tokens = per_unit * units
    if all(type(stage) in _AS_THEY_ARE for stage in preparation.of(number)):
        exact = converted_tokens(source)
        tokens, spread = (tokens, spread) if exact is None else (float(exact), 0.0)
    documents = tokens / max(float(lengths.mean()), 1e-9)
    return _Size(tokens, spread, _chance(config, lengths, documents), sample_of)


def _place(config: LaneConfig, place: int, finer: int) -> tuple[float, bool, DocumentSizes]:
    """Return the weight read at one position, True if it is everything, and the document sizes.

    The weight is 0 if no position in a shard was known. Groups are counted as their member
    documents.
    """
    most = {"documents": SAMPLE_DOCUMENTS // finer, "tokens": SAMPLE_TOKENS // finer}
    stream, blocks, ended = begun(config, place, **most)
    if ended or stream.peek() is None:
        return (
            _read(config, place, None),
            True,
            joined_sizes(first_documents(blocks, stream.serial), config),
        )
    position = stream.position_before(stream.serial)
    cursor = position.cursor.get("at")
    units = 0.0 if cursor is None else _read(config, place, cursor)
    return units, False, joined_sizes(first_documents(blocks, position.serial), config)


def _read(config: LaneConfig, place: int, cursor: dict[str, Any] | None) -> float:
    """Return the weight before a cursor; the whole weight if the cursor is None."""
    source = config.source.inner
    if not isinstance(source, ShardedSource):
        return 1.0
    low, high = source.share(place, config.lanes)
    span = source.span(low, high, seed=config.seed, epoch=0, shuffle=config.shuffle)
    return float(high - low - (0 if cursor is None else span.left(cursor)))


def _chance(config: LaneConfig, lengths: NDArray[np.int64], documents: float) -> float:
    """Return the excess of the longest lane over the mean if documents are dealt at random."""
    if not len(lengths) or config.lanes == 1:
        return 0.0
    each = max(documents * (config.epochs or 1) / config.lanes, 1.0)
    deviation = float(lengths.std() / max(lengths.mean(), 1e-9)) / math.sqrt(each)
    return deviation * math.sqrt(2 * math.log(config.lanes))
