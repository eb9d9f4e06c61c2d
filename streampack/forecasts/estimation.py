"""Estimate the steps of a run, with an error, from a sample or from the reports of its lanes.

Before a run, from a sample:
  1. Read each source at up to four positions, or more if it is in memory or compressed, as the run
     reads it. This gives the tokens per unit of weight, or per byte of compressed content.
  2. Multiply by the weight of an epoch for its tokens; the shares give the tokens of a mixture.
  3. Pack the sample as a lane packs it. This gives the slots per token.
  4. Leave out the share of the sample that the run leaves out: excluded, or above caps.
  5. Allow for unequal lanes: a run lasts as long as its longest lane.

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
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from streampack.deals.report_channel import decode_reports
from streampack.documents.blocks import part_of
from streampack.forecasts.contents import Contents
from streampack.forecasts.dry_run import dry_run, stream_plan
from streampack.forecasts.sampling import joined
from streampack.forecasts.source_size import size_of
from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.mixtures.source import Mixture, sources_of
from streampack.packing.request import DocumentSizes

if TYPE_CHECKING:
    from streampack.forecasts.left_out import CapForecast
    from streampack.run.rank import RankRun

QUARTERS = 4  # parts of a sample, compared for the error of its slots per token
STEPS = 2000  # resolution of a simulated mixture
ENOUGH = 0.02  # fraction of an epoch read before an estimate uses lane reports
NOTABLE = 0.1  # fraction of a source's due tokens; sources may end a few steps apart by chance
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
    """Steps of a run, rows of all its ranks, tokens that it draws from each source, and caps."""

    steps: Estimate
    rows: int
    draws: tuple[Draw, ...]
    caps: tuple[CapForecast, ...] = ()


def forecast(config: LaneConfig, topology: Topology) -> Forecast | None:
    """Estimate the steps of a whole run from a sample, including empty batches at its end.

    An endless run is simulated for one epoch, or for as many tokens as the sources of its mixture
    hold. Return None if the size of a source is unknown.
    """
    sizes = []
    for number, source in enumerate(sources_of(config.source)):
        size = size_of(config, source, number)
        if size is None:
            return None
        sizes.append(size)
    drawn, ends = _drawn(config, [size.tokens for size in sizes])
    total = sum(drawn)
    shares = [tokens / total if total else 0.0 for tokens in drawn]
    epochs = [n / size.tokens if size.tokens else 0.0 for n, size in zip(drawn, sizes, strict=True)]
    error = math.hypot(*(n * size.error for n, size in zip(epochs, sizes, strict=True)))
    caps: tuple[CapForecast, ...] = ()
    if config.wrappers:
        from streampack.forecasts.left_out import delivered

        share, unsure, caps = delivered(config, total)
        total, error = total * share, math.hypot(error * share, total * unsure)
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
    if error:
        error = math.hypot(error, total * _slots_error(config, documents))
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
    return Forecast(steps, rows, tuple(map(Draw, names, held, drawn, asked, ends)), caps)


def _slots_error(config: LaneConfig, documents: DocumentSizes) -> float:
    """Return the relative standard error of the slots per token, from quarters of the sample."""
    rates = []
    for quarter in range(QUARTERS):
        lengths = documents.lengths[quarter::QUARTERS]
        weights = part_of(documents.weights, slice(quarter, None, QUARTERS))
        if not lengths.sum():
            return 0.0
        plan = stream_plan(
            lengths, config.packer, config.window, batch_tokens=config.batch_tokens, weights=weights
        )
        rates.append(float(plan.seq_len.sum() / lengths.sum()))
    return float(np.std(rates, ddof=1)) / math.sqrt(QUARTERS) / max(float(np.mean(rates)), 1e-9)


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

    Return None without enough reports: less than a fiftieth of an epoch is read, a source is not
    dealt, it has compressed lines, or the run has caps.
    """
    rule, sources = config.dealing, sources_of(config.source)
    stops = isinstance(config.source, Mixture) and config.source.at_end == "stop"
    if rule is None or stops or len(rule.lines) != len(sources):
        return None
    if "caps" in config.preparation.described:
        return None  # reports count the tokens that lanes leave out
    if any(Contents.lies_unevenly(source._inner) for source in sources):
        return None  # lanes report stored bytes
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
    of_lane *= config.packer._batch_share(math.ceil(of_lane), schedule_seed=config.seed)
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
