"""The look-ahead window: a bounded buffer of documents that is planned anew every round.

Documents lie in arrival order in one flat token array, from which rows are gathered. Each round:

  1. `admit` adds documents until the window holds this round's target of tokens;
  2. `plan` has the packer plan the whole window and select the rows to deliver;
  3. the rows are gathered, batch by batch (`gather`);
  4. `advance` removes delivered tokens; the rest stays, one round older.

The target doubles from one batch to the full window, so that the first batch comes early. A
document that does not fit is admitted in parts of whole rows, over several rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, offsets_of
from streampack.errors import PlanError, StreampackError
from streampack.packing.choice import RowChoice
from streampack.packing.packer import Packer, fields_of, row_limits
from streampack.packing.plan import Plan, check_plan
from streampack.packing.request import DocumentSizes, WindowRequest
from streampack.packing.rng import derive_seed
from streampack.window.buffer import TokenBuffer
from streampack.window.config import WindowConfig, sure_tokens
from streampack.window.entries import HELD, LENGTH, START, Entries, sizes_of
from streampack.window.planned import (
    PlannedWindow,
    Room,
    admitted,
    needed_tokens,
    planned_window,
    retained,
)

#: Number of first rounds of a lane in which the plans of a user's packer are checked.
CHECKED_ROUNDS = 4
#: Environment variable; set to 1 it enables checks of every plan of every packer.
CHECK_ALL = "STREAMPACK_CHECK_PLANS"


class Window:
    """A lane's window.

    Args:
        config: resolved configuration (`WindowConfig.resolve`).
        packer: packer that plans the window.
        batch_tokens: tokens per batch; a batch has ``batch_tokens // seq_len`` rows.
        seed: seed of the lane.
        schedule_seed: seed of the run, for packers with a batch schedule common to all lanes.
        choice: choice of the rows to deliver; None is by fill.
        name: function from the origin of a document to its name in errors.

    Attributes:
        round: index of the current round.
        buffer: the documents held.
    """

    def __init__(
        self,
        config: WindowConfig,
        packer: Packer,
        *,
        batch_tokens: int,
        seed: int,
        schedule_seed: int = 0,
        choice: RowChoice | None = None,
        name: Callable[[np.void], str] = lambda origin: f"document {origin['index']}",
    ) -> None:
        self._config = config
        self._window_tokens = config.tokens(packer)
        self._packer = packer
        self._longest = packer.seq_lens[-1]
        self._batch_tokens = batch_tokens
        self._enough = sure_tokens(packer, batch_tokens)
        self._seed = seed
        self._schedule_seed = schedule_seed
        self._choice = choice or RowChoice()
        self._name = name
        self.round = 0
        self.buffer = TokenBuffer(self._window_tokens)
        self._continued = False

    # ------------------------------------------------------------------ filling

    @property
    def target_tokens(self) -> int:
        """Number of tokens that the window should hold before this round is planned."""
        return min(self._window_tokens, self._batch_tokens << min(self.round, 40))

    @property
    def entries(self) -> Entries:
        """The documents held, in order of arrival."""
        return self.buffer.entries

    @property
    def continued(self) -> bool:
        """True if the last document is held in part and has more tokens to admit."""
        return self._continued

    @property
    def wants(self) -> bool:
        """True while this round's target is not reached."""
        if self.buffer.used >= self.target_tokens:
            return False
        return self.buffer.count < self._config.documents or self.buffer.used < self._enough

    def admit(self, documents: Documents, serials: NDArray[np.int64]) -> tuple[int, bool]:
        """Take documents in order, until the target is reached.

        Args:
            documents: a block; its first document is continued if it is held in part.
            serials: (N,) int64, serials of the block's documents in the lane.

        Returns:
            Index of the first document not taken in full, and True if the window is full for this
            round.

        Raises:
            PlanError: a document is too long and the packer's overflow is "error".
        """
        self._refuse_overlong(documents)
        first = 0
        if self._continued:
            if not self._continue(documents):
                return 0, True
            first = 1
        held = np.empty(len(documents) - first, dtype=np.int64)
        overflow, offsets = self._packer.overflow, documents.offsets
        if overflow in ("truncate", "drop"):
            offsets = offsets_of(self.tokens_to_place(documents))
        room = Room(
            self.buffer.used,
            self.target_tokens,
            self._window_tokens,
            self._config.documents - self.buffer.count,
            self._enough,
        )
        count = admitted(offsets, first, room, held)
        self.buffer.append(documents, first, held[:count], serials, self.round)
        following = first + count
        if following < len(documents) and self.wants:
            # The next document does not fit: take the tokens of some whole rows, if there is room.
            part = (self._window_tokens - self.buffer.used) // self._longest * self._longest
            length = int(documents.offsets[following + 1] - documents.offsets[following])
            if overflow == "split" and 0 < part < length:
                self.buffer.append(documents, following, np.array([part]), serials, self.round)
                self._continued = True
        return following, following < len(documents) or not self.wants

    def tokens_to_place(
        self, documents: Documents, cut: NDArray[np.int64] | int = 0
    ) -> NDArray[np.int64]:
        """Return the tokens (N,) int64 of each document that rows will hold, less its last `cut`.

        The window applies the overflow policy, because the packer may see only part of a document.
        """
        sizes = sizes_of(documents, self._packer)
        sizes = sizes._replace(lengths=sizes.lengths - cut)
        return needed_tokens(self._packer, sizes, self._batch_tokens)

    def _continue(self, documents: Documents) -> bool:
        """Hold more of the partly held document; return True once it is held to its end."""
        start, held, length = self.entries.numbers[[START, HELD, LENGTH], -1].tolist()
        done = start + held
        unread = length - done
        more = min(unread, self._window_tokens - self.buffer.used)
        if more < unread:  # until its end a document is held in whole rows
            more = max((held + more) // self._longest * self._longest - held, 0)
        if more > 0:
            begin = int(documents.offsets[0]) + done
            self.buffer.extend_last(documents, begin, more, round=self.round)
        self._continued = bool(more < unread)
        return bool(more == unread)

    # ------------------------------------------------------------------ planning

    def plan(self, *, final: bool, step: int = 0) -> PlannedWindow:
        """Have the packer plan the whole window and select the rows to deliver.

        Args:
            final: True if the lane has no further documents.
            step: number of batches that the lane has delivered.

        Raises:
            PlanError: the packer's rows cannot be gathered (`planned_window`).
        """
        entries, longest = self.entries, self._longest
        held, sizes = entries.held, self.buffer.fields.sizes(entries, self._packer)
        needed = needed_tokens(self._packer, sizes, self._batch_tokens)
        lengths = remaining = np.maximum(needed - entries.start, 0)
        if self._continued and remaining[-1] > held[-1]:
            lengths = np.append(remaining[:-1], held[-1] + 2 * longest)
        request = WindowRequest(
            lengths=lengths,
            remaining=remaining,
            held=held,
            delivered=entries.start,
            rounds_left=entries.arrived - (self.round - self._config.max_carries),
            batch_tokens=self._batch_tokens,
            seq_len=longest,
            final=final,
            growing=self.target_tokens < self._window_tokens,
            min_fill=self._config.min_fill,
            carry=self._config.carry,
            step=step,
            seed=derive_seed(self._seed, self.round),
            schedule_seed=self._schedule_seed,
            choice=self._choice,
            members=sizes.members,
            weights=sizes.weights,
            limits=row_limits(self._packer),
        )
        selection = self._packer.plan_window(request)
        planned = planned_window(selection, request, entries.repeated, self._packer)
        if self._checks:  # all rules, beyond the ones that compiled code relies on
            self._check(selection.plan, request)
        return planned

    @property
    def _checks(self) -> bool:
        """True if this round's plan is checked by all rules: the first plans of a user's packer."""
        if os.environ.get(CHECK_ALL, "0") not in ("", "0"):
            return True
        ours = type(self._packer).__module__.startswith("streampack.")
        return not ours and self.round < CHECKED_ROUNDS

    def _check(self, plan: Plan, request: WindowRequest) -> None:
        lengths = request.lengths
        if not request.final:  # unplaced tokens wait; the last document may be cut anywhere
            reached = plan.dropped.copy()
            np.maximum.at(reached, plan.document, plan.stop + plan.dropped[plan.document])
            lengths = np.minimum(reached, lengths)
            if request.in_part:
                lengths[-1] = reached[-1]
        try:
            check_plan(plan, lengths)
            request.limits.check(plan, request.weights)
        except PlanError as error:
            raise PlanError(
                f"The plan of {type(self._packer).__name__} for round {self.round} is wrong. "
                f"{error.fact}",
                "Correct its `plan_window`; streampack.packing.check_plan(plan, lengths) documents "
                "the rules, and can be called in a test.",
            ) from error

    def _refuse_overlong(self, documents: Documents) -> None:
        # Check here, because the packer sees a document only once the window holds it.
        if self._packer.overflow != "error" or not len(documents):
            return
        sizes = sizes_of(documents, self._packer)
        over = ~self._packer._fits(sizes, self._batch_tokens)
        if over.any():
            i = int(np.argmax(np.where(over, sizes.lengths, 0)))
            name = self._name(documents.origin[i])
            name = f"the group that begins with {name}" if documents.members else name
            slots = documents.members is not None and documents.members.in_slots
            raise PlanError(
                f"{name[0].upper()}{name[1:]} {self.excess(sizes, i, slots=slots)}.",
                'Filter them out, or use overflow="drop".'
                if documents.members or fields_of(self._packer)
                else 'Filter such documents out, or use overflow="split", "truncate" or "drop".',
                setting="overflow",
                document=name,
            )

    def excess(self, sizes: DocumentSizes, i: int, *, slots: bool) -> str:
        """Describe why document i does not fit: "has 9 tokens, a row has 5", or `slots`."""
        packer, longest = self._packer, self._longest
        fault = row_limits(packer).excess(sizes.weights, i)
        if fault is not None:
            return fault
        many = f"a batch has {self._batch_tokens // longest} rows of"
        where = many if packer._packs_members else "a row has"
        return f"has {sizes.lengths[i]} {'slots' if slots else 'tokens'}, {where} {longest}"

    def advance(self, planned: PlannedWindow, *, starved: bool = False) -> None:
        """Remove the delivered rows; the rest stays for the next round.

        `starved` is True if there were fewer documents than the target required.
        """
        entries = self.entries
        stays = np.empty((3, len(entries)), dtype=np.int64)
        count, tails = retained(
            planned.plan.columns, planned.rows, planned.dropped, planned.lengths,
            entries.repeated, self._continued, stays,
        )  # fmt: skip
        if not tails:
            raise PlanError(
                "A row may go only with the rows that hold its documents' earlier tokens, which "
                f"{type(self._packer).__name__} left out.",
                "Correct its `plan_window`, or report it if the packer is streampack's.",
            )
        stuck = count == len(entries) and not len(planned.rows)
        if stuck and not starved and self.target_tokens >= self._window_tokens:
            raise StreampackError(
                f"{type(self._packer).__name__} must select rows of a full window, got none for "
                f"{len(entries)} documents and {self.buffer.used} tokens.",
                "Correct its `plan_window`, or report it if the packer is streampack's.",
            )
        kept, moved, repeated = stays[:, :count]
        self.buffer.keep(kept, moved, repeated, planned.position)
        self.round += 1

    # ------------------------------------------------------------------ restoring

    def restore(self, documents: Documents, entries: Entries, *, continued: bool) -> None:
        """Restore saved entries (N,) from the N documents that have their tokens, in order.

        A saved window is refilled block by block, beginning with an empty window.
        """
        if len(entries):
            self.buffer.restore(documents, entries)
        self._continued = continued
