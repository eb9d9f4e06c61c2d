"""The look-ahead window: a bounded buffer of documents that is planned again and again.

Documents lie in arrival order in one flat token array, so a plan is made from their lengths and
rows are gathered from one place. Each round:

  1. `admit` documents until the window holds this round's target of tokens;
  2. `plan`: the packer plans the whole window, `choose_rows` picks what goes;
  3. the rows are gathered, batch by batch (`assembly`);
  4. `advance` removes what went; the rest stays, one round older.

The target doubles from one batch to the full window, so that the first batch comes early. A
document that does not fit is admitted in part (whole rows' worth), and continued in later rounds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents, offsets_of
from streampack.errors import PlanError, StreampackError
from streampack.packing.packer import BatchPacker, Packer, TailPacker, foreseen, online
from streampack.packing.plan import Plan
from streampack.packing.rng import derive_seed
from streampack.window.balancing import Balance
from streampack.window.buffer import Arena
from streampack.window.config import WindowConfig, sure_tokens
from streampack.window.entries import HELD, LENGTH, START, Entries
from streampack.window.planned import (
    PlannedWindow,
    admitted,
    needed_tokens,
    not_full,
    oldest_tokens,
    what_stays,
)
from streampack.window.selection import choose_rows, chooses_by_cost, in_turn

__all__ = ["PlannedWindow", "Window"]


class Window:
    """A lane's window.

    Args:
        config: resolved (`WindowConfig.resolve`).
        packer: plans it.
        batch_tokens: tokens per batch; ``batch_tokens // seq_len`` rows.
        seed: the lane's.
        schedule_seed: the run's, for packers whose batches follow a schedule common to all lanes.
        balance: measured; the schedule of costs that rows follow. None goes by no costs.
    """

    def __init__(
        self,
        config: WindowConfig,
        packer: Packer,
        *,
        batch_tokens: int,
        seed: int,
        schedule_seed: int = 0,
        balance: Balance | None = None,
    ) -> None:
        assert config.window_tokens is not None
        self._config = config
        self._window_tokens = config.window_tokens
        self._packer = packer
        # Asked once: a protocol is looked up member by member, which takes longer than a plan.
        self._batch_packer = packer if isinstance(packer, BatchPacker) else None
        self._tail_packer = packer if isinstance(packer, TailPacker) else None
        self._online = online(packer)
        self._longest = packer.seq_lens[-1]
        self._batch_tokens = batch_tokens
        self._enough = sure_tokens(packer, batch_tokens)
        self._seed = seed
        self._schedule_seed = schedule_seed
        self._balance = balance
        # Where rows go by their costs, the last piece of a document longer than a row is planned
        # once its full rows went, or its row would wait for their turns.
        by_cost = balance is not None and chooses_by_cost(self._online, packer.carries)
        self._ends_later = by_cost and not self._online.join_short
        self.round = 0
        self._arena = Arena(config.window_tokens)
        self._continued = False

    # ------------------------------------------------------------------ filling

    @property
    def target_tokens(self) -> int:
        """Tokens this round aims to hold."""
        return min(self._window_tokens, self._batch_tokens << min(self.round, 40))

    @property
    def tokens(self) -> NDArray[np.generic]:
        """(num_tokens or more,) uint16 or uint32; a plan's `position` says where an entry's lie."""
        return self._arena.tokens

    @property
    def loss_mask(self) -> NDArray[np.bool_] | None:
        """Like `tokens`; None while every token counts."""
        return self._arena.loss_mask

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return self._arena.used

    @property
    def num_documents(self) -> int:
        """Documents held, in whole or in part."""
        return self._arena.count

    @property
    def entries(self) -> Entries:
        """The documents held, in order of arrival."""
        return self._arena.entries

    @property
    def continued(self) -> bool:
        """True if the last document is held in part and goes on."""
        return self._continued

    @property
    def wants(self) -> bool:
        """True while this round's target is not reached."""
        if self._arena.used >= self.target_tokens:
            return False
        return self.num_documents < self._config.window_documents or self._arena.used < self._enough

    def admit(self, documents: Documents, first: int, serial: int) -> tuple[int, bool]:
        """Take documents from `first` on, in order, until the target is reached.

        Args:
            documents: a block.
            first: the first document to take (or to go on with, if held in part).
            serial: its running number in the lane.

        Returns:
            The first document not taken entirely, and True if the window takes no more this
            round.

        Raises:
            PlanError: a document is too long and the packer's overflow is "error".
        """
        self._refuse_overlong(documents)
        if self._continued:
            if not self._continue(documents, first):
                return first, True
            first, serial = first + 1, serial + 1
        held = np.empty(len(documents) - first, dtype=np.int64)
        overflow = self._packer.overflow
        count = admitted(
            documents.offsets, first,
            None if overflow in ("split", "error") else self._longest,
            self._longest if overflow == "truncate" else 0,
            self._arena.used, self.target_tokens, self._window_tokens,
            self._config.window_documents - self.num_documents, self._enough, held,
        )  # fmt: skip
        self._append(documents, first, held[:count], serial)
        following = first + count
        if following < len(documents) and self.wants:
            # The next one does not fit: take whole rows' worth of it, if there is room.
            part = (self._window_tokens - self._arena.used) // self._longest * self._longest
            length = int(documents.offsets[following + 1] - documents.offsets[following])
            if overflow == "split" and 0 < part < length:
                self._append(documents, following, np.array([part]), serial + count)
                self._continued = True
        return following, following < len(documents) or not self.wants

    def needed(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) int64: tokens of each document that rows will hold, by the overflow policy.

        The window applies it, because the packer may see only what is left of a document.
        """
        return needed_tokens(self._packer, lengths)

    def _append(
        self, documents: Documents, first: int, held: NDArray[np.int64], serial: int
    ) -> None:
        self._arena.append(documents, first, held, serial=serial, round=self.round)

    def _continue(self, documents: Documents, first: int) -> bool:
        """Hold more of the partly held document; True once it is held to its end."""
        start, held, length = self.entries.numbers[[START, HELD, LENGTH], -1].tolist()
        done = start + held
        rest = length - done
        more = min(rest, self._window_tokens - self._arena.used)
        if more < rest:  # what is held stays a whole number of rows as long as more follows
            more = max((held + more) // self._longest * self._longest - held, 0)
        if more > 0:
            begin = int(documents.offsets[first]) + done
            self._arena.extend_last(documents, begin, more, round=self.round)
        self._continued = more < rest
        return bool(more == rest)

    # ------------------------------------------------------------------ planning

    def plan(self, *, final: bool, step: int = 0) -> PlannedWindow:
        """Plan everything the window holds and choose the rows that go.

        Args:
            final: nothing comes after what the window holds.
            step: batches the lane has given before.
        """
        entries = self.entries
        remaining = np.maximum(self.needed(entries.length) - entries.start, 0)
        if self._batch_packer is not None:
            return self._plan_batches(self._batch_packer, remaining, final, step)
        lengths = remaining
        if self._continued and remaining[-1] > entries.held[-1]:
            whole = foreseen(self._packer, int(remaining[-1]), int(entries.held[-1]))
            lengths = np.append(remaining[:-1], whole)
        seed = derive_seed(self._seed, self.round)
        longest, rows_per_batch = self._longest, self._batch_tokens // self._longest
        if self._online.whole_batches and not final:
            told = oldest_tokens(np.minimum(lengths, entries.held), self._batch_tokens)
            plan = self._packer.plan(told, final=final, seed=seed)
            rows = np.arange(plan.num_rows, dtype=np.int64)
            rows = in_turn(rows, plan, self._balance, step, rows_per_batch)
        else:
            told = lengths
            if self._ends_later and not final:
                told = np.where(lengths > longest, lengths // longest * longest, lengths)
            plan, rows = self._plan(told, final, seed, step)
        if entries.repeated.any():
            again = np.where(plan.start == 0, entries.repeated[plan.document], 0)
            plan = replace(plan, overlap=plan.overlap + again)
        ends = np.arange(0, len(rows) + rows_per_batch, rows_per_batch, dtype=np.int64)
        batches = np.minimum(ends, len(rows))
        return PlannedWindow(plan, rows, batches, offsets_of(entries.held), lengths)

    def _plan(
        self, lengths: NDArray[np.int64], final: bool, seed: int, step: int
    ) -> tuple[Plan, NDArray[np.int64]]:
        """Plan, and choose rows; if the packer joins short rows that would go, plan once more."""
        if self._tail_packer is not None:
            delivered = self.entries.start
            plan = self._tail_packer.plan_tails(lengths, delivered, final=final, seed=seed)
        else:
            plan = self._packer.plan(lengths, final=final, seed=seed)
        rows = self._choose(plan, final, seed, step)
        if not self._online.join_short or final or not not_full(plan, rows).any():
            return plan, rows
        plan = self._packer.plan(lengths, final=True, seed=seed)
        rows = self._choose(plan, final, seed, step)
        if len(rows) > self._batch_tokens // self._longest or self.target_tokens >= (
            self._window_tokens
        ):
            return plan, rows
        # A small first window: if a batch would need a row that is not full, look further first.
        waiting = self.round - self.entries.arrived < self._config.max_carries
        patient = not_full(plan, rows) & waiting[plan.document[plan.row_offsets[rows]]]
        return plan, rows[:0] if patient.any() else rows

    def _choose(self, plan: Plan, final: bool, seed: int, step: int) -> NDArray[np.int64]:
        ages = self.round - self.entries.arrived
        if self._ends_later:
            ages = ages + (self.entries.held > self._longest)  # and its full rows go a round early
        return choose_rows(
            plan,
            overdue=np.maximum(ages - self._config.max_carries + 1, 0),
            held=self.entries.held,
            rows_per_batch=self._batch_tokens // self._longest,
            min_fill=1.0 if self._online.join_short else self._config.min_fill,
            carry=self._config.carry,
            carries=self._packer.carries,
            final=final,
            seed=derive_seed(seed, 1),
            online=self._online,
            balance=self._balance,
            step=step,
        )

    def _plan_batches(
        self, packer: BatchPacker, remaining: NDArray[np.int64], final: bool, step: int
    ) -> PlannedWindow:
        """The next batches of a packer that follows a schedule."""
        held = self.entries.held
        must_go = self.round - self.entries.arrived >= self._config.max_carries
        plan, batches = packer.plan_batches(
            np.minimum(held, remaining),
            must_go=must_go | final,
            batch_tokens=self._batch_tokens,
            least_tokens=math.ceil((1 - self._config.carry) * self.num_tokens),
            rotation=step,
            schedule_seed=self._schedule_seed,
            seed=derive_seed(self._seed, self.round),
        )
        rows = np.arange(plan.num_rows, dtype=np.int64)
        return PlannedWindow(plan, rows, batches, offsets_of(held), remaining)

    def _refuse_overlong(self, documents: Documents) -> None:
        # Not left to the packer: it sees a document only once the window can hold it.
        if self._packer.overflow != "error" or not len(documents):
            return
        lengths = documents.lengths
        i = int(np.argmax(lengths))
        if lengths[i] > self._longest:
            origin = documents.origin[i]
            raise PlanError(
                f"Document {int(origin['index'])} of shard {int(origin['shard'])}"
                + (f" of source {int(origin['source'])}" if origin["source"] else "")
                + " has "
                f"{int(lengths[i])} tokens, a row has {self._longest}.",
                'overflow="error" forbids that.',
                'Filter such documents out, or use overflow="split", "truncate" or "drop".',
            )

    def advance(self, planned: PlannedWindow) -> None:
        """Remove what went; the rest stays for the next round."""
        plan, entries = planned.plan, self.entries
        stays = np.empty((3, len(entries)), dtype=np.int64)
        count, tails = what_stays(
            planned.rows, plan.row_offsets, plan.document, plan.start, plan.stop, plan.overlap,
            planned.dropped, planned.lengths, entries.repeated, self._continued, *stays,
        )  # fmt: skip
        if not tails:
            raise PlanError(
                "Rows were chosen that hold later tokens of a document without its earlier ones.",
                "What stays of a document must be its tail, or tokens would be lost.",
                "This is a defect of streampack or of a custom packer; please report it.",
            )
        stuck = count == len(entries) and not len(planned.rows)
        if stuck and self.target_tokens >= self._window_tokens:
            raise StreampackError(
                f"A full window of {len(entries)} documents and {self.num_tokens} tokens gave no "
                "batch.",
                "The lane cannot go on.",
                "This is a defect of streampack or of a custom packer; please report it with the "
                "configuration.",
            )
        kept, moved, repeated = stays[:, :count]
        self._arena.keep(kept, moved, repeated, planned.position)
        self.round += 1

    # ------------------------------------------------------------------ restoring

    def restore(self, documents: Documents, entries: Entries, *, continued: bool) -> None:
        """Take over saved entries whose tokens are documents[i], one for one, in order.

        Used on an empty window while a saved state is refilled; `entries` of a block follow
        those of the block before.
        """
        if len(entries):
            self._arena.restore(documents, entries)
        self._continued = continued
