"""Paired comparisons over seeds: Student's intervals, and Holm's correction over several of them.

Sources: Student, "The Probable Error of a Mean" (1908); Holm, "A Simple Sequentially Rejective
Multiple Test Procedure" (1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Paired", "holm", "mean_and_error", "paired", "student_tail"]

_INTERVALS = 400  # of Simpson's rule: errors are far below the printed digits


@dataclass(frozen=True)
class Paired:
    """Differences over seeds.

    Attributes:
        mean: of the differences.
        half_width: of the 95 % interval around it.
        p: of Student's test, both sides, that the mean is 0.
    """

    mean: float
    half_width: float
    p: float


def student_tail(t: float, freedom: int) -> float:
    """Probability that Student's t with so many degrees of freedom is further from 0 than `t`."""
    density = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        freedom * math.pi
    )
    top = math.atan(abs(t) / math.sqrt(freedom))  # the substitution makes a finite, smooth integral
    step = top / _INTERVALS
    weights = [1, *[4, 2] * (_INTERVALS // 2 - 1), 4, 1]
    inside = sum(w * math.cos(k * step) ** (freedom - 1) for k, w in enumerate(weights))
    return max(0.0, 1 - 2 * density * math.sqrt(freedom) * inside * step / 3)


def _quantile(tail: float, freedom: int) -> float:
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return high


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error (sample standard deviation over the root of the count)."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def paired(differences: Sequence[float]) -> Paired:
    """Statistics of two seeds or more; one seed has neither interval nor p (both are NaN)."""
    mean, error = mean_and_error(differences)
    freedom = len(differences) - 1
    if freedom < 1:
        return Paired(mean, math.nan, math.nan)
    if error == 0:
        return Paired(mean, 0.0, 1.0 if mean == 0 else 0.0)
    return Paired(mean, _quantile(0.05, freedom) * error, student_tail(mean / error, freedom))


def holm(p: Sequence[float]) -> list[float]:
    """Corrected p of each: at most so high is the chance of any false finding at that level."""
    order = sorted(range(len(p)), key=lambda k: p[k])
    corrected = [0.0] * len(p)
    highest = 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[k]))
        corrected[k] = highest
    return corrected
