"""Resume a loader from its own state, and compare the batches with a run without a stop."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from streampack.checking.coverage import Coverage, check_missing
from streampack.checking.faults import FaultLog
from streampack.checking.loaders import Loaders, in_step
from streampack.checking.reading import Reader, View


@dataclass
class Saved:
    """States of all ranks after a batch, and the batches behind it without a stop.

    Attributes:
        after: number of batches of each rank before the state.
        states: state of each rank.
        coverage: counts of the documents at the state; None without marked documents.
        later: digest of each later batch, by rank.
    """

    after: int
    states: list[Any]
    coverage: Coverage | None
    later: list[list[str]] = field(default_factory=list)


def digest_of(view: View) -> str:
    """Return a hash of a batch's ids and targets."""
    parts = [view.tokens, np.zeros(0) if view.targets is None else view.targets]
    whole = hashlib.sha256(repr([part.shape for part in parts]).encode())
    for part in parts:
        whole.update(np.ascontiguousarray(part).tobytes())
    return whole.hexdigest()


def states_of(loaders: Sequence[Any]) -> list[Any] | str:
    """Return a copy of each loader's state, or the reason why there is none."""
    if not all(
        hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") for loader in loaders
    ):
        return "the loader has no state_dict and load_state_dict"
    try:
        return [copy.deepcopy(loader.state_dict()) for loader in loaders]
    except Exception as error:  # accelerate raises AttributeError
        return f"state_dict raised {type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened."""
    return next(iter(str(error).splitlines()), "")[:200]


def check_resume(
    make: Loaders, saved: Saved, read: Reader, ended: bool, most: int, log: FaultLog
) -> None:
    """Load the states twice, and add how the batches behind them differ.

    Args:
        make: makes the loaders.
        saved: the states, and the later batches.
        read: reads a batch.
        ended: the run without a stop came to its end.
        most: batches to read of each rank.
        log: log of the faults.
    """
    again = [_continued(make, saved, read, most) for _ in range(2)]
    digests, coverage = again[0]
    for rank, later in enumerate(saved.later):
        log.rank = rank
        if digests[rank] == later:
            continue
        pairs = zip(digests[rank], later, strict=False)
        same = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        log.batch = saved.after + (min(len(digests[rank]), len(later)) if same is None else same)
        before = len(log.by_kind)
        if coverage is not None and saved.coverage is not None and ended:
            _check_documents(saved.coverage, coverage, log)
        if len(log.by_kind) == before:
            log.add("state-does-not-repeat", detail="other batches than without a stop")
        break
    log.rank, log.batch = 0, saved.after
    if again[1][0] != digests:
        log.add("state-does-not-repeat", detail="the second load gives other batches")


def _check_documents(before: Coverage, after: Coverage, log: FaultLog) -> None:
    documents = before.documents
    of_token = documents.place_of(np.arange(documents.num_tokens))[0]
    both = np.unique(of_token[(before.times > 0) & (after.times > 0)])
    detail = f"documents {', '.join(map(str, both[:5].tolist()))}"
    log.add("documents-twice-over-resume", count=len(both), detail=detail)
    kind = "documents-missing-over-resume"
    check_missing((before + after).times, documents, log, kind, kind)


def _continued(
    make: Loaders, saved: Saved, read: Reader, most: int
) -> tuple[list[list[str]], Coverage | None]:
    loaders = make.make()
    for loader, state in zip(loaders, saved.states, strict=True):
        loader.load_state_dict(copy.deepcopy(state))
    digests: list[list[str]] = [[] for _ in loaders]
    coverage = None if saved.coverage is None else Coverage(saved.coverage.documents)
    for batches, _ in islice(in_step(loaders), most):
        for rank, batch in enumerate(batches):
            if batch is None:
                continue
            view = read(batch)
            digests[rank].append(digest_of(view))
            if coverage is not None:
                coverage.add(view)
    return digests, coverage
