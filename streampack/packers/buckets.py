"""Buckets: rows of several lengths, each document in the shortest row that holds it.

Steps (`Buckets.plan`; documents by decreasing length, ties by arrival):
  1. While documents remain, the next row is of the smallest bucket that holds the longest of them.
     If that document is longer than the largest bucket, a row of the largest takes its head, and
     its tail stays in the order.
  2. The longest remaining document that fits the remaining room is added whole, until none fits.
  3. If room / bucket is above `padding_threshold`, the head of the shortest remaining document
     (ties: the latest arrival) fills the room and its tail stays; otherwise the room is padding.
With ``align`` every piece of a document occupies a multiple of it, padding included.

Cost: O(documents), one compiled pass: a bitmap holds the remaining lengths, so the longest that
fits is found in a few instructions. Keeps every token; cuts at most one document per row, and
hardly any where many are short; pads at most the threshold's share of a row, except for the last
one.

Online (`Buckets.plan_window`) a seeded schedule fixes the bucket of every batch; `curriculum`
describes the schedule and `bucket_rows` how batches are filled.

Source: "Bucket Pre-training is All You Need" (2024), algorithm 1. The paper does not define how
ties are broken or how several chunks of one document are treated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.arguments import is_whole, real_number, whole_number
from streampack.documents.blocks import ranges_of
from streampack.errors import ConfigError
from streampack.packers.bucket_rows import Waiting, fill_batches
from streampack.packers.bucket_shapes import (
    Shapes,
    by_length,
    check_rows,
    checked_degrees,
    levels_of,
    shares_of_batches,
)
from streampack.packers.curriculum import Curriculum, plain_shares, scheduled_buckets
from streampack.packing.bitmap import clear_bit, new_bitmap, next_set, set_bit
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import checked_lengths, require_align, require_buckets
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import permutation

DEFAULT_SEQ_LENS = (2048, 4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True)
class Buckets(Packer):
    """Packs rows of several lengths; online, a schedule gives every batch one of the lengths.

    Args:
        seq_lens: the buckets, tokens per row, ascending. More buckets cut and pad less, and give
            more shapes of batches.
        padding_threshold: share of a row that may stay empty before a document is cut to fill it.
            Lower it for less padding, raise it for fewer cut documents.
        shares: share of the tokens (so of the batches) per bucket: numbers, or a `Curriculum` that
            changes them over training. By default they are measured on a sample of the corpus when
            a dataset starts, and kept in its state.
        warm_up: rotations over which the longer buckets are introduced one after another.
        align: pad every piece to a multiple of this inside its row, as context parallelism requires
            (``2 * cp_size``); the filling counts as padding. Of several requirements, as
            ``(2 * cp_size, 16)``, the least common multiple is used.
        batch_tokens: tokens per batch, a multiple of the longest row. By default one longest row,
            or the rows given by the dataset's `batch_size`. With `cp` it is the size of a batch of
            the longest rows.
        cp: number of neighbouring ranks that share a batch, per bucket, as ``(1, 4, 16)``; each
            divides the last. All ranks hold ``batch_tokens / cp[-1]`` tokens in any step, and a
            piece in a shared batch occupies a multiple of ``2 * cp`` slots. By default nothing is
            shared.
        choice: ``Balance("attention")`` gives the batches of all ranks in a step about the same
            attention cost: in every lane their rows are opened by documents of about the same
            length.
    """

    seq_lens: tuple[int, ...] = DEFAULT_SEQ_LENS
    padding_threshold: float = 0.05
    shares: Curriculum | Sequence[float] | None = None
    warm_up: int = 0
    align: int | Sequence[int] = 1
    batch_tokens: int | None = None
    cp: Sequence[int] = ()
    choice: RowChoice | None = None

    measures = "shares"
    _revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_lens", require_buckets(self.seq_lens))
        for size in self.seq_lens:
            object.__setattr__(self, "align", require_align(self.align, size))
        cp = checked_degrees(self.cp, self.seq_lens, self._multiple)
        object.__setattr__(self, "cp", cp)
        object.__setattr__(self, "_shares_batches", cp[-1] > 1)
        longest, tokens = self.seq_lens[-1], self.batch_tokens
        if tokens is not None and (
            not is_whole(tokens) or not longest <= tokens < 1 << 31 or tokens % longest
        ):
            raise ConfigError(
                f"batch_tokens must be a multiple of the longest row ({longest} tokens), "
                f"got {tokens!r}.",
                f"Use a multiple of {longest}.",
                setting="batch_tokens",
            )
        if tokens is not None:
            object.__setattr__(self, "batch_tokens", int(tokens))
        check_rows(self.seq_lens, self.cp, self.batch_tokens or longest)
        threshold = real_number("padding_threshold", self.padding_threshold, least=0, most=1)
        object.__setattr__(self, "padding_threshold", threshold)
        object.__setattr__(self, "warm_up", whole_number("warm_up", self.warm_up, least=0))
        if self.warm_up and isinstance(self.shares, Curriculum):
            raise ConfigError(
                f"warm_up requires constant shares, got warm_up={self.warm_up} and a Curriculum.",
                "Put the warm-up into the curriculum.",
                setting="warm_up",
            )
        if self.shares is not None:
            if not isinstance(self.shares, Curriculum):
                object.__setattr__(self, "shares", plain_shares(self.shares))
            count = self.curriculum.num_buckets
            if count != len(self.seq_lens):
                raise ConfigError(
                    f"shares must have one value for each bucket of {self.seq_lens}, got {count}.",
                    f"Pass {len(self.seq_lens)} shares, shortest bucket first.",
                    setting="shares",
                )

    @property
    def _multiple(self) -> int:
        """`align` as an int, which `__post_init__` has made it."""
        return cast(int, self.align)

    def _shapes(self, batch_tokens: int) -> Shapes:
        return Shapes.of(self.seq_lens, self.cp, self._multiple, batch_tokens)

    @property
    def curriculum(self) -> Curriculum:
        """The buckets' shares of the batches as a function of the rotation.

        With `cp` a batch of few ranks is small, so its bucket has a larger share of the batches
        than of the tokens.

        Raises:
            ConfigError: the shares are neither given nor measured.
        """
        if self.shares is None:
            raise ConfigError(
                "The shares of the buckets are neither given nor measured.",
                "Pass shares=, or measure them with `with_sample(lengths)`.",
                setting="shares",
            )
        shares = self.shares
        if not isinstance(shares, Curriculum):
            warm_up = self.warm_up
            shares = Curriculum.warm_up(shares, warm_up) if warm_up else Curriculum.constant(shares)
        return shares_of_batches(shares, self.cp)

    def with_sample(self, lengths: NDArray[np.int64]) -> Buckets:
        """Return a copy with the token shares of algorithm 1 on documents of lengths (N,)."""
        plan = self.plan(lengths, final=True, seed=0)
        slots = [
            int(plan.seq_len[plan.seq_len == size].sum(dtype=np.int64)) for size in self.seq_lens
        ]
        if not plan.num_rows:
            raise ConfigError(
                "Measuring the shares of the buckets requires documents, got an empty sample.",
                "Pass shares=, or check which documents the source and the filter yield.",
                setting="shares",
            )
        return replace(self, shares=tuple(round(size / sum(slots), 6) for size in slots))

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Apply algorithm 1 to all documents; rows are in the order of their creation.

        `final` and `seed` have no effect, because nothing here is random.
        """
        lengths = checked_lengths(lengths)
        room = -(-lengths // self._multiple) * self._multiple
        longest = self.seq_lens[-1]
        heads = np.maximum(room - 1, 0) // longest  # number of full rows cut from a document's head
        document, start = _heads(room, heads, longest)
        sizes, _, aligns = self._shapes(longest)
        row_offsets, bucket, documents, starts, stops = _compose(
            room - heads * longest, heads * longest, sizes, aligns, self.padding_threshold
        )
        cut = len(document)
        return self._plan_of(
            np.concatenate([np.arange(cut, dtype=np.int64), row_offsets + cut]),
            np.concatenate([np.full(cut, longest), sizes[bucket]]),
            np.concatenate([document, documents]),
            np.concatenate([start, starts]),
            np.concatenate([start + longest, stops]),
            lengths,
        )

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the lane's next batches, each in the bucket that the schedule assigns to it.

        There are enough batches for the tokens that may not stay (at least one, and not more than
        the documents fill), and more only for documents that must go. A batch is never empty, and
        lacks rows only where no documents are left.

        Raises:
            ConfigError: the shares are neither given nor measured.
        """
        lengths = np.minimum(request.held, request.lengths)
        must_go = request.rounds_left <= 0
        room = -(-lengths // self._multiple) * self._multiple
        shapes, total = self._shapes(request.batch_tokens), int(room.sum())
        slots = request.batch_tokens * np.array(self.cp, dtype=np.int64) // self.cp[-1]
        curriculum, threshold = self.curriculum, self.padding_threshold
        least_tokens = math.ceil((1 - request.carry) * int(request.held.sum()))
        all_go = bool(request.final or must_go.all())
        level = self.choice is not None
        order = by_length(room, shapes.sizes[-1]) if level else permutation(len(room), request.seed)
        waiting, levels = Waiting(room, must_go, order), np.zeros(0, dtype=np.uint32)
        at_most = 2 * -(-(total if all_go else min(least_tokens, total)) // int(slots.min())) + 8
        while True:
            turns = scheduled_buckets(curriculum, request.schedule_seed, 0, request.step + at_most)
            buckets = turns[request.step :]
            if level:
                levels = levels_of(turns, shapes.rows, request.step)
            ends = slots[buckets].cumsum()
            count = int(ends.searchsorted(total if all_go else least_tokens)) + 1
            if not all_go:
                count = max(min(count, int(ends.searchsorted(total, side="right"))), 1)
            filled = fill_batches(waiting, shapes, buckets, count, threshold, request.final, levels)
            if filled.complete:
                break
            at_most *= 2
        plan = self._plan_of(
            filled.row_offsets, filled.seq_len, filled.document, filled.start, filled.stop, lengths
        )
        return Selection(plan, np.arange(plan.num_rows, dtype=np.int64), filled.batches)

    def _plan_of(
        self,
        row_offsets: NDArray[np.int64],
        seq_len: NDArray[np.int64],
        document: NDArray[np.int64],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> Plan:
        """Build a plan over documents of these lengths; `stop` may include alignment padding."""
        stop, dropped = np.minimum(stop, lengths[document]), np.zeros_like(lengths)
        plan = Plan.plain(row_offsets, seq_len, document, start, stop, dropped)
        sizes, _, aligns = self._shapes(self.seq_lens[-1])
        multiple = np.repeat(aligns[sizes.searchsorted(seq_len)], np.diff(row_offsets))
        return replace(plan, pad_after=(start - stop) % multiple)

    def seq_len_at(self, step: int, *, schedule_seed: int) -> int:
        """Return the tokens per row of the batch with index `step`, the same in every lane."""
        return self.seq_lens[int(scheduled_buckets(self.curriculum, schedule_seed, step, 1)[0])]

    def _rows_per_batch(self, seq_len: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
        """Return the rows (B,) per batch for rows of these lengths (B,)."""
        sizes, rows, _ = self._shapes(batch_tokens)
        return rows[sizes.searchsorted(seq_len)]

    def cp_at(self, step: int, *, schedule_seed: int) -> int:
        """Return the number of ranks that share the batch with index `step` of every lane."""
        return self.cp[int(scheduled_buckets(self.curriculum, schedule_seed, step, 1)[0])]

    def _batch_share(self, count: int, *, schedule_seed: int) -> float:
        """Return the slots of a lane's first `count` batches, in units of ``batch_tokens``."""
        if len({*self.cp}) == 1 or not count:
            return 1.0
        turns = scheduled_buckets(self.curriculum, schedule_seed, 0, count)
        return float(np.array(self.cp)[turns].mean() / self.cp[-1])

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and algorithm revision."""
        shares = self.shares
        return {
            **({"align": self.align} if self._multiple > 1 else {}),
            **({"balance": "attention"} if self.choice else {}),
            **({"cp": list(self.cp)} if self.cp[-1] > 1 else {}),
            "kind": "Buckets",
            "revision": self._revision,
            "seq_lens": list(self.seq_lens),
            "padding_threshold": self.padding_threshold,
            "shares": shares.describe()
            if isinstance(shares, Curriculum)
            else shares and list(shares),
            "warm_up": self.warm_up,
        }


def _heads(
    lengths: NDArray[np.int64], heads: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the full rows cut from documents longer than the largest bucket, (document, start).

    They precede all other rows, because the remainder of such a document is the longest piece until
    it fits. So they are ordered by the tokens that remain at each cut.
    """
    document = np.repeat(np.arange(len(lengths), dtype=np.int64), heads)
    start = ranges_of(np.zeros_like(heads), heads) * longest
    order = np.lexsort((document, start - lengths[document]))
    return document[order], start[order]


@kernel_of(lambda lengths, *_: 20 * lengths.size)
def _compose(
    lengths: NDArray[np.int64],
    begin: NDArray[np.int64],
    sizes: NDArray[np.int64],
    aligns: NDArray[np.int64],
    threshold: float,
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]:
    """Apply algorithm 1 to documents of at most the largest bucket.

    Args:
        lengths: (N,) int64, 0 to leave out a document; begin: (N,) int64, offset of its first token
            in the document.
        sizes, aligns: (B,) int64, of the buckets; see `Shapes`.
        threshold: see `Buckets`.

    Returns:
        Row offsets, the bucket of every row, and the segments' document, start and stop.
    """
    largest = sizes[-1]
    # Documents sorted by length, ties by arrival; by_length[first[s]:last[s]] are the documents of
    # length s that remain. At most one document is cut and not used up; it is kept apart, since it
    # is shorter than all others.
    by_length = np.argsort(lengths, kind="mergesort")[(lengths == 0).sum() :]
    each, ordered = np.arange(largest + 1), lengths[by_length]
    first = np.searchsorted(ordered, each)
    last = np.searchsorted(ordered, each, side="right")
    remaining = new_bitmap(largest + 1)  # members are `largest` minus length
    for d in by_length:
        set_bit(remaining, largest - lengths[d])
    left = len(by_length)
    shortest = 1
    cut, cut_left = -1, 0
    offsets = np.zeros(left + 1, dtype=np.int64)
    bucket = np.empty(left, dtype=np.int64)
    document = np.empty(2 * left, dtype=np.int64)
    start = np.empty(2 * left, dtype=np.int64)
    stop = np.empty(2 * left, dtype=np.int64)
    at = begin.copy()
    rows = 0
    k = 0
    while left > 0:
        b = np.searchsorted(sizes, largest - next_set(remaining, 0))
        room = sizes[b]
        while True:
            place = next_set(remaining, largest - room)
            if place < 0:
                break
            size = largest - place
            if size == cut_left:
                d, cut_left = cut, 0
            else:
                d = by_length[first[size]]
                first[size] += 1
            if first[size] == last[size]:
                clear_bit(remaining, place)
            document[k], start[k], stop[k] = d, at[d], at[d] + size
            k += 1
            left -= 1
            room -= size + -size % aligns[b]
        if left > 0 and room / sizes[b] > threshold:
            if cut_left == 0:
                while first[shortest] == last[shortest]:
                    shortest += 1
                last[shortest] -= 1
                cut, cut_left = by_length[last[shortest]], shortest
            if first[cut_left] == last[cut_left]:
                clear_bit(remaining, largest - cut_left)
            document[k], start[k], stop[k] = cut, at[cut], at[cut] + room
            k += 1
            at[cut] += room
            cut_left -= room  # stays above 0, since a document that fits was added before
            set_bit(remaining, largest - cut_left)
        bucket[rows] = b
        rows += 1
        offsets[rows] = k
    return offsets[: rows + 1], bucket[:rows], document[:k], start[:k], stop[:k]
