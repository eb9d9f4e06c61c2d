"""RunPlan: what is fixed or measured for a whole run before its first batch.

A plan follows from the dataset's arguments alone: the number of lanes and what is measured on a
sample are the same on every rank and in every worker process, whoever asks first. A resumed run has
the number of lanes and the measurements of its saved state.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.lane.config import MOST_LANES, LaneConfig
from streampack.lane.rotation import OtherLanes
from streampack.packing import Packer
from streampack.packing.balancing import Balance
from streampack.packing.limits import row_loads
from streampack.packing.rng import permutation
from streampack.run.changed_settings import carry_over, previous_config
from streampack.run.cp_groups import CpGroups, least_lanes
from streampack.run.dry_run import stream_plan
from streampack.run.estimation import sample
from streampack.run.fingerprint import changed_fields, fingerprint_of
from streampack.run.state import Deferred, RunState, batches_due, check_state
from streampack.sources.base import Source
from streampack.sources.iterable.indexed import Items
from streampack.window.config import WindowConfig

TOKENS_PER_DOCUMENT = 1024  # assumed for an ordering window; web text has 700 to 1,000
LANES_PER_RANK = 12  # so that 1, 2, 3, 4, 6 and 12 times as many ranks can go on with the run
EVALUATION_LANES = (48, 24, 12, 6, 4, 2, 1)  # for the same reason
BATCHES_PER_LANE = 200  # of a finite run: its end costs a lane one batch or two
WINDOWS_PER_LANE = 12  # with fewer, the end of the lane, which packs badly, is a large share of it
SHARES_DOCUMENTS = 8192  # of half as many, documents per row were up to 3.4 % off (docs/papers.md)
BALANCE_WINDOWS = 3  # windows of rows packed from a sample to find out what rows cost
BALANCE_ORDERS = 64  # times that the sample is packed for that at most
IMAGE_BYTES_PER_TOKEN = 144  # of a window of images: a photograph of 150 KB has 1,000 tokens
BYTES_PER_TOKEN = 8  # of a window: ids of four bytes, twice, since a round copies what stays


def choose_lanes(config: LaneConfig, ranks: int) -> int:
    """Lanes for a run: up to 12 per rank, and no more than give each enough to pack well.

    Each lane has at least 12 windows, and in a finite run 200 batches. If that allows fewer lanes
    than there are ranks, the number of lanes divides the ranks, and several ranks run each lane.
    Where ranks share batches, they are as many as those must be that their steps have one length.
    One rank reads a list of token ids in one lane: workers would not make that any faster.

    Args:
        config: of the run; source prepared, `lanes` open.
        ranks: of the first start.
    """
    source, window_tokens = config.source, lane_tokens(config)
    if ranks == 1 and isinstance(source, Items) and source.tokenized:
        return 1
    least = least_lanes(config.packer, ranks) if config.packer.cp[-1] > 1 else 0
    if 0 < least <= MOST_LANES:
        ranks //= config.packer.cp[-1]  # those that run other lanes
    token_bytes = BYTES_PER_TOKEN + (IMAGE_BYTES_PER_TOKEN if config.row_format.media else 0)
    lane_bytes = token_bytes * window_tokens + source.reader_bytes()
    most = min(LANES_PER_RANK, config.window.memory_limit // lane_bytes) * ranks
    tokens, splits = source.estimate_tokens(), source.max_lanes()
    if tokens is not None:
        most = min(most, tokens // (WINDOWS_PER_LANE * window_tokens))
        if config.epochs is not None:
            most = min(most, config.epochs * tokens // (BATCHES_PER_LANE * config.batch_tokens))
    if splits is not None:
        most = min(most, splits)
    if 0 < least <= MOST_LANES:
        return max(most - most % least, least)
    if most >= ranks:
        return most - most % ranks
    return next(n for n in range(max(most, 1), 0, -1) if ranks % n == 0)


def lane_tokens(config: LaneConfig) -> int:
    """Tokens that a lane holds, about: how many it holds for ordering is not known before."""
    ordering = 0 if config.order is None else config.order.order_window_documents
    return config.window.tokens(config.packer) + ordering * TOKENS_PER_DOCUMENT


def evaluation_lanes(source: Source, *, window_tokens: int) -> int:
    """Lanes of an evaluation, the same for any ranks: up to 48, each of several windows."""
    most = source.max_lanes() or EVALUATION_LANES[0]
    tokens = source.estimate_tokens()
    if tokens is not None:
        most = min(most, tokens // (WINDOWS_PER_LANE * window_tokens))
    return next((lanes for lanes in EVALUATION_LANES if lanes <= most), 1)


def measured(config: LaneConfig) -> LaneConfig:
    """`config` with what its packer and its balance must measure before a run, on a sample.

    Raises:
        ConfigError: the source can be read only once, so a sample would be lost to the run.
    """
    if config.packer.needs_sample:
        lengths = sample(config, documents=SHARES_DOCUMENTS).lengths
        config = replace(config, packer=config.packer.with_sample(lengths))
    if config.balance is None or config.balance.quantiles is not None:
        return config
    if config.source.once:
        raise ConfigError(
            "The source can be read only once, and a balance measures on a sample what rows cost.",
            "Leave out balance=, or pass a source that can be read again.",
            setting="balance",
        )
    found = sample(config)
    balance = measure_balance(
        found.lengths,
        config.packer,
        config.window,
        batch_tokens=config.batch_tokens,
        weights=found.weights,
    )
    return replace(config, balance=balance)


def as_measured(config: LaneConfig, saved: Mapping[str, Any]) -> LaneConfig:
    """`config` with what the run of a saved fingerprint had measured, as far as it fits.

    Costs of rows fit if the rows have the same length.
    """
    packer, balance = config.packer, saved["balance"]
    if packer.needs_sample:
        config = replace(config, packer=packer.with_saved(saved["packer"]))
    if config.balance is None or balance is None or balance["kind"] != config.balance.kind:
        return config
    if saved["packer"].get("seq_len") != packer.seq_lens[-1]:
        return config
    return replace(config, balance=Balance.from_description(balance))


def measure_balance(
    lengths: NDArray[np.int64],
    packer: Packer,
    window: WindowConfig,
    *,
    batch_tokens: int,
    weights: Fields = NO_FIELDS,
) -> Balance:
    """The schedule of the packer's costs for documents of these lengths and weights, a sample.

    The sample is packed as a lane would pack it without a balance, several times in random orders,
    because it would fill only a few long rows. `window` is resolved.
    """
    window_tokens, kind = window.tokens(packer), packer.balance or "attention"
    held = lengths > 0
    lengths = lengths[held]
    total = max(int(np.minimum(lengths, window_tokens).sum()), 1)
    orders = min(-(-BALANCE_WINDOWS * window_tokens // total), BALANCE_ORDERS)
    stream = np.concatenate([permutation(len(lengths), order) for order in range(orders)])
    weights = {name: values[held][stream] for name, values in weights.items()}
    plan = stream_plan(lengths[stream], packer, window, batch_tokens=batch_tokens, weights=weights)
    if not plan.num_rows:
        return Balance((0,), kind)
    full = row_loads(plan, packer.capacity, weights) >= window.min_fill * plan.seq_len
    costs = Balance(kind=kind).costs(plan, weights)[full if full.any() else slice(None)]
    return Balance.measured(costs, kind)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What is fixed for a run, as one rank sees it.

    Attributes:
        config: of the lanes: how many there are, the row format, measured shares and costs.
        topology: this rank; of those that share batches, all that run the same lanes count as one.
        fingerprint: JSON-able identity of the run: all that decides which tokens come in which
            batch.
        groups: of ranks that share batches; None where each has its own.
    """

    config: LaneConfig
    topology: Topology
    fingerprint: dict[str, Any]
    groups: CpGroups | None = None

    @classmethod
    def of(cls, config: LaneConfig, topology: Topology) -> RunPlan:
        """The plan of a complete configuration."""
        groups = CpGroups.of(config, topology)
        if groups is not None:
            topology = groups.lanes
        shares, lanes = topology.shares(config.lanes), config.lanes
        if shares > 1 and topology.rank == 0:
            logger.warning(
                "ranks: %d, lanes: %d. %d ranks read each lane, so the reading and tokenizing of "
                "all ranks together grows %d-fold; with a number of ranks that divides the lanes "
                "(%s) it does not. lanes= of PackedDataset makes more of them, which a corpus of "
                "this size packs a little worse.",
                topology.world_size,
                lanes,
                shares,
                shares,
                ", ".join(str(n) for n in range(1, lanes + 1) if lanes % n == 0),
            )
        fingerprint = fingerprint_of(config)
        return cls(config=config, topology=topology, fingerprint=fingerprint, groups=groups)

    @property
    def ranks(self) -> Topology:
        """This rank among all."""
        return self.topology if self.groups is None else self.groups.ranks

    def start(self) -> RunState:
        """The state before the first batch."""
        own = self.topology.lanes(0, self.config.lanes)
        others: dict[int, Deferred]
        others = dict.fromkeys(set(range(self.config.lanes)).difference(own))
        return RunState(self.fingerprint, self.topology, 0, dict.fromkeys(own), others=others)


def plan_run(config: LaneConfig, topology: Topology) -> RunPlan:
    """Choose the lanes and measure what is missing.

    Args:
        config: of the lanes; `lanes` is 0 where their number is to be chosen.
        topology: of this rank.

    Raises:
        ConfigError: a sample is wanted of a source that can be read only once.
    """
    if not config.lanes:
        config = replace(config, lanes=choose_lanes(config, topology.world_size))
    config = measured(config)
    return RunPlan.of(replace(config, dealing=config.deal_settings.rule()), topology)


def resume_run(
    config: LaneConfig, topology: Topology, state: Mapping[str, Any], allow: Collection[str]
) -> tuple[RunPlan, RunState]:
    """The plan of a saved run, and where it goes on; see `PackedDataset.load_state_dict`."""
    check_state(state)
    saved = state["fingerprint"]
    if not config.lanes:
        config = replace(config, lanes=saved["lanes"])
    config = measured(as_measured(config, saved))
    config = replace(config, dealing=config.deal_settings.saved_rule(saved))
    current = fingerprint_of(config)
    changed = changed_fields(saved, current, allow)
    # Attention has no part in what rows hold.
    replans = bool(set(changed) - {"attention"}) or not config.deal_settings.keep(config.dealing)
    if replans:
        before = previous_config(config, saved, current, changed)
        given = state["next_batch"] // config.lanes
        dealing = config.deal_settings.rule_after(before.dealing, before.deal_settings, given)
        config = replace(config, dealing=dealing)
    plan = RunPlan.of(config, topology)
    run = RunState.of_rank(state, plan.fingerprint, plan.topology)
    if replans:
        before = replace(before, weight_changes=run.weight_changes)
        if "source" in changed:  # whose weights hold from here on
            run.weight_changes = ()
        sharing, rule = run.sharing(connected=False), before.dealing
        dealer = sharing.dealer(rule, sharing.exchange(rule), run.states())
        OtherLanes(before, dealer, sharing).report_for(given)
        if dealer is not None:
            dealer.make(dealer.rule.known(given))
        run.replan(
            lambda lane, own: carry_over(
                before,
                config,
                lane,
                own,
                batches_due(lane, run.next_batch, config.lanes),
                dealer,
            )
        )
    return plan, run
