"""Packer: base class of streampack's packers and of a user's own."""

from __future__ import annotations

import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import check_call, parameters
from streampack.documents.blocks import Fields
from streampack.errors import PlanError
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import Overflow
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, Selection, WindowRequest
from streampack.packing.row_limits import RowLimits, combined
from streampack.packing.selection import fullest_rows

#: Arguments of packers before `limits` and `choice`.
EARLIER = frozenset({"balance", "capacity", "separate_batches", "separate_by"})


class _PackerType(ABCMeta):
    """Type of packers, which checks the arguments of a call."""

    if not TYPE_CHECKING:

        def __call__(cls, *arguments: Any, **settings: Any) -> Any:
            """Raise `TypeError`, with the call to write, for unknown settings of a packer."""
            if not EARLIER.isdisjoint(settings):
                from streampack.limits.earlier_arguments import with_limits

                settings = with_limits(cls, settings)
            check_call(cls.__name__, cls.__init__, arguments, settings)
            return super().__call__(*arguments, **settings)

        @property
        def __signature__(cls) -> inspect.Signature:
            return inspect.Signature(parameters(cls.__init__))  # not of `__call__`


class Packer(metaclass=_PackerType):
    """A pure function from document lengths to rows. Derive your own packer from it.

    A packer must have `seq_lens`, `plan` and `describe`. It may replace members with defaults:
    `plan_window`, which by default plans the whole window and takes the fullest rows, and the
    attributes. Names with an underscore belong to streampack.

    Attributes:
        seq_lens: lengths of the rows that plans use, in tokens, ascending.
        overflow: policy for documents longer than a row. In a run the window applies "truncate"
            and "drop" before the packer sees the lengths.
        inserts_eos: True if plans insert EOS where they cut, so that an EOS id is required.
        keeps_order: True if consecutive documents mostly share a row.
        keeps_whole: True if a document that fits a row is never cut.
        limits: limits of a row beside its tokens, such as `Capacity` or `Separate`.
        choice: a `Balance`, if `plan_window` asks `WindowRequest.choice`, as the functions of
            `packing.selection` do; None ignores costs.
        weights: further document fields that `plan` uses. If it has an argument ``weights``, it
            receives the values of these fields, and of the ones of `limits` and `choice`, as a
            mapping from name to (N,) int64.
        measures: name of a setting that `with_sample` measures where it is None. A state holds the
            value, in the result of `describe`. "" measures nothing.
    """

    seq_lens: tuple[int, ...]
    overflow: Overflow = "split"
    inserts_eos: bool = False
    keeps_order: bool = False
    keeps_whole: bool = False
    limits: Sequence[RowLimits] = ()
    choice: RowChoice | None = None
    weights: tuple[str, ...] = ()
    measures: ClassVar[str] = ""

    _revision: ClassVar[int] = 1  # of the algorithm; raise it when plans change
    _shares_batches: bool = False  # True if several ranks share a batch of some row length
    #: True if `plan_window` places the documents of a group one by one, in rows of one batch;
    #: `WindowRequest.members` then has their lengths.
    _packs_members: ClassVar[bool] = False

    @abstractmethod
    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack documents of these lengths (N,).

        Args:
            lengths: (N,) int64, tokens per document, in order of arrival.
            final: True if these are the last documents.
            seed: seed of every random decision; equal arguments give an equal plan anywhere.

        Raises:
            PlanError: a document is longer than a row and `overflow` is "error".
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint: class, parameters, revision."""

    def _described(self, *settings: str, if_set: Sequence[str] = ()) -> dict[str, Any]:
        """Return class, revision and these settings; `if_set` only if they are not the default."""
        changed = [name for name in if_set if getattr(self, name) != getattr(type(self), name)]
        return {
            **{name: getattr(self, name) for name in changed},
            **{name: value for limit in self.limits for name, value in limit.describe().items()},
            "kind": type(self).__name__,
            "revision": self._revision,
            **{name: getattr(self, name) for name in settings},
        }

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the documents of a lane's window, and select the rows to deliver this round.

        It must be a pure function of the request, as `plan` is of its arguments. By default it
        plans everything and selects with `fullest_rows`, unless the `limits` of rows select.
        """
        request = request.choice.adapted(request)
        plan = plan_with(
            self, request.lengths, request.weights, final=request.final, seed=request.seed
        )
        if not isinstance(plan, Plan):
            raise PlanError(
                f"{type(self).__name__}.plan must return a Plan, got {plan!r:.80}.",
                remedy="Return a streampack.packing.Plan.",
            )
        return request.limits.selected(plan, request) or fullest_rows(plan, request)

    def _fits(self, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.bool_]:
        """Return (N,) bool: documents that fit a row whole."""
        return row_limits(self).fits(sizes, self.seq_lens[-1])

    @property
    def _max_tokens_per_row(self) -> int:
        """Largest number of tokens a row consumes, dropped ones included; by default the row."""
        return self.seq_lens[-1]

    def seq_len_at(self, step: int, *, schedule_seed: int) -> int:
        """Return the tokens per row of the batch with index `step`; by default the longest row."""
        return self.seq_lens[-1]

    def _rows_per_batch(self, seq_len: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
        """Return the rows (B,) per batch for row lengths (B,); by default of equal tokens."""
        return batch_tokens // seq_len

    def _batch_share(self, count: int, *, schedule_seed: int) -> float:
        """Return the slots of a lane's first `count` batches, in units of ``batch_tokens``."""
        return 1.0

    def with_sample(self, lengths: NDArray[np.int64]) -> Packer:
        """Return a copy with the setting `measures`, from a sample of document lengths (N,)."""
        return self


def row_limits(packer: Packer) -> RowLimits:
    """Return all limits of a row as one: its tokens, and the packer's `limits`."""
    return combined(packer.limits, RowLimits() if packer.choice is None else packer.choice.rows)


def fields_of(packer: Packer) -> tuple[str, ...]:
    """Return the document fields that a packer uses, with the ones of its limits and choice."""
    fields = [*packer.weights, *(name for limit in packer.limits for name in limit.fields)]
    return tuple(dict.fromkeys([*fields, *(packer.choice.fields if packer.choice else ())]))


def is_unmeasured(rule: Packer | RowChoice) -> bool:
    """Return True if a packer or a choice has a setting still to be measured on a sample."""
    return bool(rule.measures) and getattr(rule, rule.measures) is None


def plan_with(
    packer: Packer, lengths: NDArray[np.int64], weights: Fields, *, final: bool, seed: int
) -> Plan:
    """Call `packer.plan`, with the documents' weights if it takes them."""
    taken = parameters(type(packer).plan) if weights else ()
    takes = any(each.name == "weights" or each.kind is each.VAR_KEYWORD for each in taken)
    more: dict[str, Any] = {"weights": weights} if takes else {}
    return packer.plan(lengths, final=final, seed=seed, **more)


def check_rules(packer: Packer) -> None:
    """Raise `ConfigError` unless the packer can keep its limits and its choice."""
    if packer.choice is not None or packer.limits != ():
        from streampack.limits.rules import require_rules

        require_rules(packer)
