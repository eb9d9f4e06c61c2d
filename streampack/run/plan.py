"""RunPlan: the settings and measurements of a run that are fixed before its first batch.

A plan follows from the dataset's arguments alone: the number of lanes and the measurements on a
sample are the same on every rank and in every worker process. A resumed run takes both from its
saved state.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.run.fingerprint import fingerprint_of
from streampack.run.state import Deferred, RunState, check_state
from streampack.sources.base import Source
from streampack.sources.indexed import Items

TOKENS_PER_DOCUMENT = 1024  # assumed for an ordering window; web text has 700 to 1,000
LANES_PER_RANK = 12  # divisible, so that a run can resume on 2, 3, 4, 6 or 12 times the ranks
EVALUATION_LANES = (48, 24, 12, 6, 4, 2, 1)  # divisible, for the same reason
BATCHES_PER_LANE = 200  # minimum in a finite run, because its end costs a lane one batch or two
WINDOWS_PER_LANE = 12  # minimum, because the end of a lane packs badly
BYTES_PER_TOKEN = 8  # two ids of four bytes, since a round copies retained tokens


def choose_lanes(config: LaneConfig, ranks: int) -> int:
    """Choose the number of lanes: up to 12 per rank, as long as each lane can pack well.

    Each lane gets at least 12 windows, and in a finite run 200 batches. If that allows fewer lanes
    than ranks, the number of lanes divides the ranks, and several ranks run each lane. A single
    rank reads a list of token ids in one lane, which workers cannot speed up.

    Args:
        config: configuration of the run, with a prepared source and `lanes` still open.
        ranks: number of ranks at the first start.
    """
    if ranks == 1 and isinstance(config.source, Items) and config.source.tokenized:
        return 1
    most = most_lanes(config, ranks)
    if most >= ranks:
        return most - most % ranks
    return next(n for n in range(max(most, 1), 0, -1) if ranks % n == 0)


def most_lanes(config: LaneConfig, ranks: int) -> int:
    """Return the largest number of lanes for `ranks` ranks with lanes of their own."""
    source, window_tokens = config.source, lane_tokens(config)
    lane_bytes = (BYTES_PER_TOKEN + config.stage_bytes) * window_tokens + source._reader_bytes()
    most = min(LANES_PER_RANK, config.window.memory_limit // lane_bytes) * ranks
    tokens, splits = source.estimate_tokens(), source.max_lanes()
    if tokens is not None:
        most = min(most, tokens // (WINDOWS_PER_LANE * window_tokens))
        if config.epochs is not None:
            most = min(most, config.epochs * tokens // (BATCHES_PER_LANE * config.batch_tokens))
    return most if splits is None else min(most, splits)


def lane_tokens(config: LaneConfig) -> int:
    """Return the approximate tokens in a lane's windows; an ordering window is a guess."""
    ordering = 0 if config.order is None else config.order.order_window_documents
    return config.window.tokens(config.packer) + ordering * TOKENS_PER_DOCUMENT


def evaluation_lanes(source: Source, *, window_tokens: int) -> int:
    """Choose the lanes of an evaluation for any ranks: up to 48, each of several windows."""
    most = source.max_lanes() or EVALUATION_LANES[0]
    tokens = source.estimate_tokens()
    if tokens is not None:
        most = min(most, tokens // (WINDOWS_PER_LANE * window_tokens))
    return next((lanes for lanes in EVALUATION_LANES if lanes <= most), 1)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The fixed settings of a run, for one rank.

    Attributes:
        config: configuration of the lanes: their number, row format, measured shares and costs.
        topology: this rank; ranks that run the same lanes in step count as one.
        fingerprint: JSON-able identity of the run: all settings that assign tokens to batches.
        shares_batches: True if ranks share batches.
        most_workers: number of workers that the lanes of a rank may be divided among; None is any.
    """

    shares_batches: ClassVar[bool] = False
    most_workers: ClassVar[int | None] = None

    config: LaneConfig
    topology: Topology
    fingerprint: dict[str, Any]

    def __str__(self) -> str:
        from streampack.forecasts.summary import summary

        return summary(self.config, self.topology, self.fingerprint)

    @classmethod
    def of(cls, config: LaneConfig, topology: Topology) -> RunPlan:
        """Make the plan of a complete configuration."""
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
        return RunPlan(config=config, topology=topology, fingerprint=fingerprint)

    @classmethod
    def lanes(cls, config: LaneConfig, ranks: int) -> int:
        """Choose the number of lanes; see `choose_lanes`."""
        return choose_lanes(config, ranks)

    @property
    def ranks(self) -> Topology:
        """The topology of this rank among all ranks."""
        return self.topology

    def steps_before(self, batch: int) -> int:
        """Return the number of steps of all ranks before the batch with index `batch`."""
        return batch // self.topology.world_size

    def batch_after(self, batch: int, steps: int) -> int:
        """Return the index of the first batch `steps` steps after the step of `batch`."""
        return batch + steps * self.topology.world_size

    def start(self) -> RunState:
        """Return the state before the first batch."""
        lanes = self.topology.lanes(0, self.config.lanes)
        others: dict[int, Deferred] = {n: None for n in range(self.config.lanes) if n not in lanes}
        begun: dict[int, Deferred] = dict.fromkeys(lanes)
        return RunState(self.fingerprint, self.topology, 0, begun, [], others, self.config.beside)


def kind_of_plan(config: LaneConfig) -> type[RunPlan]:
    """Return the class of the run's plan, which depends on the packer."""
    if not config.packer._shares_batches:
        return RunPlan
    from streampack.context_parallel.run import plan_of

    return plan_of(config.packer)


def plan_run(config: LaneConfig, topology: Topology) -> RunPlan:
    """Choose the lanes and measure missing settings.

    Args:
        config: configuration of the lanes; a `lanes` of 0 asks for a choice.
        topology: topology of this rank.

    Raises:
        ConfigError: a sample is needed, and the source can be read only once.
    """
    if not config.lanes:
        config = replace(config, lanes=kind_of_plan(config).lanes(config, topology.world_size))
    if config.needs_sample:
        config = _measured(config)
    return kind_of_plan(config).of(replace(config, dealing=config.deal_settings.rule()), topology)


def _measured(config: LaneConfig, saved: Mapping[str, Any] | None = None) -> LaneConfig:
    from streampack.forecasts.measuring import measured

    return measured(config, saved)


def resume_run(
    config: LaneConfig, topology: Topology, state: Mapping[str, Any], allow: Collection[str]
) -> tuple[RunPlan, RunState]:
    """Return the plan and state of a saved run; see `PackedDataset.load_state_dict`."""
    check_state(state)
    state = copy.deepcopy(state)
    saved = state["fingerprint"]
    source = config.source._as_saved(saved["source"], "later" if "source" in allow else "saved")
    if source is not config.source:
        from streampack.exclusion.leaf import with_source

        config = with_source(config, source)
    if not config.lanes:
        config = replace(config, lanes=saved["lanes"])
    if config.needs_sample:
        config = _measured(config, saved)
    config = replace(config, dealing=config.deal_settings.saved_rule(saved["dealing"]))
    current = fingerprint_of(config)
    same = saved == current and not allow
    changed: list[str] = []
    if not same:
        from streampack.changes.fields import changed_fields

        changed = changed_fields(saved, current, allow)
    # Attention affects the contents of rows only if a balance counts labels.
    if set(changed) - (
        set() if saved["balance"] else {"attention"}
    ) or not config.deal_settings.keep(config.dealing):
        from streampack.changes.settings import resume_changed

        return resume_changed(config, topology, state, current, changed)
    plan = kind_of_plan(config).of(config, topology)
    return plan, RunState.of_rank(state, plan.fingerprint, plan.topology)
