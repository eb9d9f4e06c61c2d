"""RunPlan: what is fixed for a whole run before its first batch.

A plan follows from the dataset's arguments alone: the number of lanes and what is measured on a
sample are the same on every rank and in every worker process, whoever asks first. A resumed run has
the number of lanes and the measurements of its saved state.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.run.changed_settings import carry_over, previous_config
from streampack.run.dealt import as_dealt, dealt_anew, goes_on, with_dealing
from streampack.run.fingerprint import changed_fields, fingerprint_of
from streampack.run.measuring import as_measured, choose_lanes, measured
from streampack.run.state import Deferred, RunState, batches_due, check_state

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What is fixed for a run, as one rank sees it.

    Attributes:
        config: of the lanes: how many there are, the row format, measured shares and costs.
        topology: this rank.
        fingerprint: JSON-able identity of the run: all that decides which tokens come in which
            batch.
    """

    config: LaneConfig
    topology: Topology
    fingerprint: dict[str, Any]

    @classmethod
    def of(cls, config: LaneConfig, topology: Topology) -> RunPlan:
        """The plan of a complete configuration."""
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
        return cls(config=config, topology=topology, fingerprint=fingerprint_of(config))

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
    return RunPlan.of(with_dealing(measured(config)), topology)


def resume_run(
    config: LaneConfig, topology: Topology, state: Mapping[str, Any], allow: Collection[str]
) -> tuple[RunPlan, RunState]:
    """The plan of a saved run, and where it goes on; see `PackedDataset.load_state_dict`."""
    check_state(state)
    saved = state["fingerprint"]
    if not config.lanes:
        config = replace(config, lanes=saved["lanes"])
    config = as_dealt(measured(as_measured(config, saved)), saved)
    current = fingerprint_of(config)
    changed = changed_fields(saved, current, allow)
    # Attention has no part in what rows hold.
    replans = bool(set(changed) - {"attention"}) or not goes_on(config)
    if replans:
        before = previous_config(config, saved, current, changed)
        given = state["next_batch"] // config.lanes
        config = dealt_anew(config, before, given)
    plan = RunPlan.of(config, topology)
    run = RunState.of_rank(state, plan.fingerprint, topology)
    if replans:
        sharing = run.sharing(connected=False)
        dealer = sharing.dealer(before, sharing.board(before), run.states())
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
