"""RolloutMetrics: the groups of a run by phase, their ages, and the trainer's waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.rollouts.schedule import Counts, Phase, Schedule

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, Observation


@dataclass(frozen=True, slots=True)
class RolloutMetrics:
    """Numbers of a run; counts of groups are totals over resumes, the others are of this process.

    Attributes:
        steps: training steps handed out.
        in_flight: groups that were dispatched and are not trained.
        finished: groups of these with all answers.
        partial: groups of these with some answers.
        starved: True if the next step needs slots of steps that are not published.
        age_p50, age_p99: quantiles of the ages of the last 10,000 trained groups, in steps.
        most_age: bound on ages.
        sampled_tokens, trained_tokens: tokens that carry loss, as put and as trained.
        restored: finished groups that were taken from the spool at the load.
        wait_s: seconds in which the trainer waited for answers.
        counts: groups by their end.
    """

    steps: int
    in_flight: int
    finished: int
    partial: int
    starved: bool
    age_p50: float
    age_p99: float
    most_age: int
    sampled_tokens: int
    trained_tokens: int
    restored: int
    wait_s: float
    counts: Counts

    def as_dict(self) -> dict[str, Any]:
        """Return flat names and values for a logger."""
        values = asdict(self)
        values.update(values.pop("counts"))
        return values


def counted(schedule: Schedule, *, ages: Sequence[int], **values: Any) -> RolloutMetrics:
    """Count the groups of a schedule; `values` are the attributes that it does not know."""
    groups = schedule.untrained()
    p50, p99 = np.quantile(np.array(ages), (0.5, 0.99)) if len(ages) else (0.0, 0.0)
    return RolloutMetrics(
        steps=schedule.steps,
        in_flight=len(schedule.in_flight()),
        finished=sum(group.phase is Phase.FINISHED for group in groups),
        partial=sum(group.phase is Phase.DISPATCHED and bool(group.answers) for group in groups),
        starved=schedule.starved,
        age_p50=float(p50),
        age_p99=float(p99),
        most_age=schedule.rule.most_age,
        counts=Counts(**asdict(schedule.counts)),
        **values,
    )


def export(metrics: Callable[[], RolloutMetrics], meter: Meter) -> None:
    """Make a gauge of each of the metrics."""
    from opentelemetry.metrics import Observation

    for name, value in metrics().as_dict().items():

        def observed(_: Any, name: str = name) -> Iterator[Observation]:
            yield Observation(metrics().as_dict()[name])

        unit = "s" if name.endswith("_s") else ""
        if not isinstance(value, bool):
            meter.create_observable_gauge(f"streampack.rollouts.{name}", [observed], unit)
