"""Counts of delivered data and times by stage, which can be added over lanes and ranks."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub
from threading import get_ident
from typing import Any, NamedTuple

from streampack.packing.plan import PackingStats

#: Bytes that this process fetched from remote stores, in any thread, and that no lane has counted.
fetched: deque[int] = deque()
os.register_at_fork(after_in_child=fetched.clear)
#: User code that no lane has counted, by thread: its stage, seconds, and seconds of `thread_clock`.
users: defaultdict[int, list[tuple[str, float, float]]] = defaultdict(list)
#: Clock of the seconds in which a thread is not blocked; `watching.clock` has a finer one.
thread_clock: Callable[[], float] = time.thread_time


@contextmanager
def user_code(stage: str) -> Iterator[None]:
    """Let `LaneTimes` count the user's own code as `stage`, and not as the stage that calls it."""
    began, clock = time.perf_counter(), thread_clock()
    yield
    users[get_ident()].append((stage, time.perf_counter() - began, thread_clock() - clock))


@dataclass(slots=True)
class LaneTimes:
    """Seconds that lanes spent by stage, and fetched bytes. Add two with ``+``.

    Attributes:
        read_s: waiting for storage, or for another thread or process that decodes.
        decode_s: processor time in the source: decompressing, decoding and parsing.
        iterate_s: taking items from the user's iterable or dataset.
        prepare_s: tokenizing and checks.
        hook_s: the user's `filter=`, `map=` and `stages=`.
        order_s: ordering windows of documents by similarity.
        pack_s: filling and planning the window.
        gather_s: copying rows out of the window.
        finish_s: completing batches when they are handed out: decoding images.
        send_s: pickling batches in worker processes.
        receive_s: unpickling them in the loop's process, and making their fields.
        fetched_bytes: bytes from remote stores, including those read ahead for other lanes of the
            process.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    iterate_s: float = 0.0
    prepare_s: float = 0.0
    hook_s: float = 0.0
    order_s: float = 0.0
    pack_s: float = 0.0
    gather_s: float = 0.0
    finish_s: float = 0.0
    send_s: float = 0.0
    receive_s: float = 0.0
    fetched_bytes: int = 0

    def __add__(self, other: LaneTimes) -> LaneTimes:
        return LaneTimes(*map(add, _seconds(self), _seconds(other)))

    def __sub__(self, other: LaneTimes) -> LaneTimes:
        return LaneTimes(*map(sub, _seconds(self), _seconds(other)))

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the block's time to `stage`, an attribute, without the times in `users`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            apart = users.pop(get_ident(), [])
            other = time.perf_counter() - began - sum(seconds for _, seconds, _ in apart)
            for name, seconds, _ in [*apart, (stage, other, 0.0)]:
                setattr(self, name, getattr(self, name) + seconds)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Add the block's processor time to `decode_s` and its remaining time to `read_s`."""
        began = thread_clock()
        with self.measure("read_s"):
            yield
            spent = thread_clock() - began - sum(clock for *_, clock in users[get_ident()])
            users[get_ident()].append(("decode_s", spent, 0.0))
        while fetched:
            self.fetched_bytes += fetched.popleft()


class SourceCounts(NamedTuple):
    """Counts of the data delivered from one source of a mixture.

    Attributes:
        tokens: delivered tokens.
        documents: documents with a delivered token, counted at their first piece.
        loss_tokens: labels that are not -100.
        expected_tokens: the source's share, by its weight, of the tokens of all sources so far.
    """

    tokens: int = 0
    documents: int = 0
    loss_tokens: int = 0
    expected_tokens: float = 0.0


class SourceTotals(dict[str, SourceCounts]):
    """`SourceCounts` by the name of the source. Add two with ``+``."""

    def __add__(self, other: SourceTotals) -> SourceTotals:
        none = SourceCounts()
        return SourceTotals(
            (name, SourceCounts(*map(add, self.get(name, none), other.get(name, none))))
            for name in {**self, **other}
        )

    def largest_deviation(self) -> float | None:
        """Return the largest gap between observed and expected shares, or None without tokens."""
        tokens = sum(counts.tokens for counts in self.values())
        if not tokens:
            return None
        return max(abs(counts.tokens - counts.expected_tokens) for counts in self.values()) / tokens


@dataclass
class LaneCounts:
    """Counters of a lane since the run began; see `Metrics`."""

    skipped: int = 0
    empty_documents: int = 0
    eos_in_texts: int = 0
    duplicates: int = 0
    duplicate_tokens: int = 0
    context_dropped: int = 0
    excluded: int = 0
    excluded_tokens: int = 0


@dataclass(slots=True, repr=False)
class Metrics(LaneCounts):
    """Totals over the batches that the loop has consumed. Add two with ``+``.

    Attributes:
        batches: number of batches, empty ones included.
        empty_batches: number of batches of padding alone, from lanes that ended before others.
        composition: content of the rows of the other batches.
        empty_slots: slots of the empty batches.
        left: content that ``end="stop"`` left in the lanes.
        stepped_over: content that `PackedLoader.skip` passed over.
        loss_tokens: labels that are not -100.
        loss_squares: sum of the squared loss tokens of batches.
        step_loss_squares: the same, each batch with the mean of its optimiser step on all ranks.
        empty_documents: documents without a token, which are left out.
        eos_in_texts: end-of-document ids inside texts that contain the special token.
        skipped: broken documents or shards passed over with `on_error="skip"`.
        duplicates: near-duplicate documents that `order` dropped.
        duplicate_tokens: tokens of these documents.
        context_dropped: tokens before turns of conversations that no row can hold with the turn.
        excluded: documents that `exclude` took out, rows that a table deleted, and documents above
            a cap of `ledger`, in whole or in part.
        excluded_tokens: tokens of these documents that were not delivered before.
        sources: `SourceCounts` by the name of the source, for a mixture.
        wait_s: seconds that the loop waited in `next()` for a batch.
        times: seconds that lanes spent by stage, in this process or in workers. If `wait_s` is
            large, speed up the longest stage.
    """

    batches: int = 0
    empty_batches: int = 0
    composition: PackingStats = field(default_factory=PackingStats)
    empty_slots: int = 0
    left: PackingStats = field(default_factory=PackingStats)
    stepped_over: PackingStats = field(default_factory=PackingStats)
    loss_tokens: int = 0
    loss_squares: int = 0
    step_loss_squares: float = 0.0
    sources: SourceTotals = field(default_factory=SourceTotals)
    wait_s: float = 0.0
    times: LaneTimes = field(default_factory=LaneTimes)

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*map(add, _totals(self), _totals(other)))

    def __repr__(self) -> str:
        """Return the counts that are not zero, by attribute, and `utilisation`."""
        counts = zip(_COUNTS, attrgetter(*_COUNTS)(self), strict=True)
        shown = [f"{name}={value:,}" for name, value in counts if value]
        return f"Metrics({', '.join([*shown, f'utilisation={self.utilisation:.4f}'])})"

    @property
    def tokens(self) -> int:
        """Number of document tokens in the batches, repeated ones included."""
        return self.composition.placed

    @property
    def shared_tokens(self) -> int:
        """Number of sequence tokens that share a slot, in trees (``layout="tree"``)."""
        return self.composition.shared

    @property
    def documents(self) -> int:
        """Number of documents with tokens in the batches."""
        return self.composition.documents

    @property
    def utilisation(self) -> float:
        """Share of all slots with a token, slots of empty batches included."""
        composition = self.composition
        slots = composition.slots + self.empty_slots
        return 1.0 - (composition.padding + self.empty_slots) / slots if slots else 0.0

    @property
    def loss_dropped_ratio(self) -> float:
        """Share of labels that are in no row."""
        total = self.loss_tokens + self.composition.loss_dropped
        return self.composition.loss_dropped / total if total else 0.0

    @property
    def loss_deviation_between_steps(self) -> float:
        """Standard deviation of the steps' loss tokens, in shares of their mean.

        A step is a batch of every rank, or a group of `PackedLoader.accumulate`.
        """
        return self._deviation(self.step_loss_squares, self.loss_tokens**2 / (self.batches or 1))

    @property
    def loss_deviation_within_steps(self) -> float:
        """Standard deviation of batches' loss tokens around their step's mean, in shares of it."""
        return self._deviation(self.loss_squares, self.step_loss_squares)

    def _deviation(self, squares: float, of_means: float) -> float:
        variance = max(squares - of_means, 0) * self.batches
        return math.sqrt(variance) / self.loss_tokens if self.loss_tokens else 0.0

    def count_step(self, loss_tokens: Sequence[int], mean: float) -> None:
        """Count the loss tokens of this rank's batches; `mean` is over the batches of all ranks."""
        self.loss_squares += sum(count * count for count in loss_tokens)
        self.step_loss_squares += len(loss_tokens) * mean * mean

    def as_dict(self) -> dict[str, Any]:
        """Return flat names and numbers for a logger, with ``tokens/NAME`` etc. for a mixture."""
        from streampack.watching.named_metrics import named_metrics

        return named_metrics(self)


#: Attribute paths of the counts in the repr of `Metrics`.
_COUNTS = (
    "batches", "empty_batches", "tokens", "shared_tokens", "documents", "loss_tokens",
    "composition.dropped", "composition.documents_cropped", "composition.documents_lost",
    "composition.loss_dropped", "composition.documents_unlearnt", "left.placed", "left.documents",
    "stepped_over.placed", "stepped_over.documents", "empty_documents", "eos_in_texts", "skipped",
    "duplicates", "duplicate_tokens", "context_dropped", "excluded", "excluded_tokens",
)  # fmt: skip
_seconds = attrgetter(*(f.name for f in fields(LaneTimes)))
_totals = attrgetter(*(f.name for f in fields(Metrics)))
