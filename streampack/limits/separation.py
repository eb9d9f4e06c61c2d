"""Separation: documents with different keys never share a row.

A key is the value of a document field, such as a LoRA adapter, a policy version, a licence or a
repository. Texts have keys by `streampack.documents.text_keys`.

Steps:
  1. Documents are divided by key.
  2. The documents of each key are packed alone, by the packer's own steps. A key with no more
     tokens than a row takes one row.
  3. Rows of all keys compete for the round's batches, like any rows (`packing.selection`). A row
     that is not full waits for documents of its key, at most `WindowConfig.max_carries` rounds;
     then it goes with padding, which `PackingStats.padding` counts.

The window keeps its size, so with many keys it holds few documents of each, and rows have more
padding. More `WindowConfig.rows` give each key more documents to choose from.

Cost: one sort of the window's keys, and one plan for each key with more tokens than a row; there
are at most as many as the window has rows. Nothing is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import switch
from streampack.documents.blocks import Documents, Fields, offsets_of, part_of
from streampack.errors import ConfigError, PlanError
from streampack.packing.overflow import limit_lengths
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, Selection, WindowRequest
from streampack.packing.row_limits import RowLimits

if TYPE_CHECKING:
    from streampack.packing.fit_decreasing import Decreasing
    from streampack.packing.packer import Packer
    from streampack.stages.recipe import Recipe


_TOKENS = RowLimits()


@dataclass(frozen=True)
class Separate(RowLimits):
    """Keep documents with different keys in different rows: one of a packer's ``limits=``.

    Args:
        field: document field of integers or texts with the keys, such as an adapter or a licence.
            Rows that do not become full wait at most `WindowConfig.max_carries` rounds.
        batches: True to give all rows of a batch one key, as for adapters of which a step trains
            one (`limits.key_batches`). A batch that does not become full waits likewise; its
            missing rows are padding. Without ``choice=``.
        within: limits of each row, which the packer sets.
    """

    field: str
    batches: bool = False
    within: RowLimits = _TOKENS

    divides = True

    def __post_init__(self) -> None:
        if not isinstance(self.field, str) or not self.field:
            raise ConfigError(
                f"Separate requires the name of a document field, got {self.field!r:.80}.",
                'Pass for example Separate("adapter"), and declare the field.',
                setting="field",
            )
        switch("batches", self.batches)

    @property
    def fields(self) -> tuple[str, ...]:
        """See `RowLimits`."""
        return (self.field,)

    @property
    def window_share(self) -> int:
        """See `RowLimits`."""
        return 4 if self.batches else 128  # because these batches are full only if the window is

    def require(self, packer: Packer) -> None:
        """Raise `ConfigError` for a limit by the keys, or batches of one key with a choice."""
        if any(self.field in limit.fields for limit in packer.limits if limit is not self):
            raise ConfigError(
                f'Separate("{self.field}") requires a document field without a limit, got limits='
                f"{packer.limits!r:.200}.",
                "Leave out one of them.",
                setting="limits",
            )
        if self.batches and packer.choice is not None:
            raise ConfigError(
                f"Batches of one key cannot follow a choice, got choice={packer.choice!r:.80}.",
                "Leave out choice= or batches=True.",
                setting="choice",
            )

    def around(self, inner: RowLimits) -> RowLimits:
        """See `RowLimits`."""
        return replace(self, within=inner)

    def add(self, recipe: Recipe) -> None:
        """Add the check of keys; raise `ConfigError` unless they are a declared integer field."""
        declared = recipe.fields.document.get(self.field)
        if declared is None or declared.kind not in "iu":
            raise ConfigError(
                f'Separate("{self.field}") requires an integer document field, '
                f"got {'no such field' if declared is None else declared.name}.",
                f'Declare it: document_fields={{"{self.field}": "int64"}}, or "text" for names.',
                setting="limits",
            )
        recipe.add("units", CheckedKeys(self.field))

    def describe(self) -> dict[str, Any]:
        """See `RowLimits`."""
        batches = {"separate_batches": True} if self.batches else {}
        return {"separate_by": self.field, **batches}

    def selected(self, plan: Plan, request: WindowRequest) -> Selection | None:
        """See `RowLimits`."""
        if not self.batches:
            return None
        from streampack.limits.key_batches import batches_of_a_key

        return batches_of_a_key(plan, request, self.loads(plan, request.weights), self.field)

    def fits(self, sizes: DocumentSizes, seq_len: int) -> NDArray[np.bool_]:
        """See `RowLimits`."""
        return self.within.fits(sizes, seq_len)

    def excess(self, weights: Fields, i: int) -> str | None:
        """See `RowLimits`."""
        return self.within.excess(weights, i)

    def loads(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """See `RowLimits`."""
        return self.within.loads(plan, weights)

    def check(self, plan: Plan, weights: Fields) -> None:
        """See `RowLimits`."""
        self.within.check(plan, weights)
        if not plan.num_rows:
            return
        keys = weights[self.field][plan.document]
        least, most = (
            each.reduceat(keys, plan.row_offsets[:-1]) for each in (np.minimum, np.maximum)
        )
        mixed = np.flatnonzero(least != most)
        if len(mixed):
            raise PlanError(
                f'In this plan a row has several values of "{self.field}" '
                f"(at {mixed[:5].tolist()})."
            )

    def plan(self, packer: Decreasing, lengths: NDArray[np.int64], weights: Fields) -> Plan:
        """Run the steps of the module for documents of these lengths and weights (N,).

        Raises:
            PlanError: the keys are missing, or a document is too long and overflow is "error".
        """
        if self.field not in weights:
            raise PlanError(
                f'Separate("{self.field}") requires the keys of the documents, which are missing '
                "from weights.",
                f'Pass weights={{"{self.field}": ...}}, one whole number for each document.',
                setting="weights",
            )
        sizes = DocumentSizes(lengths, weights)
        if packer.overflow == "error" and not self.within.fits(sizes, packer.seq_len).all():
            return self.within.plan(packer, lengths, weights)  # its error names the document
        kept, _ = limit_lengths(lengths, packer.seq_len, packer.overflow)
        key = np.unique(weights[self.field], return_inverse=True)[1].reshape(-1)
        tokens = np.zeros(int(key.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(tokens, key, -(-kept // packer.multiple) * packer.multiple)
        alone = (tokens <= packer.seq_len) & (not self.within.fields)
        by_key = np.lexsort((-kept, key))  # in a row, the longest comes first
        ends = offsets_of(np.bincount(key, minlength=len(tokens)))
        parts = [_one_row_each(by_key[alone[key[by_key]]], key, kept, lengths, packer)]
        for k in np.flatnonzero(~alone).tolist():
            own = np.sort(by_key[ends[k] : ends[k + 1]])
            plan = self.within.plan(packer, lengths[own], part_of(weights, own))
            parts.append((own, plan))
        return joined_plans(parts, len(lengths))


def _one_row_each(
    order: NDArray[np.int64],
    key: NDArray[np.int64],
    kept: NDArray[np.int64],
    lengths: NDArray[np.int64],
    packer: Decreasing,
) -> tuple[NDArray[np.int64], Plan]:
    """Return documents by key, and their plan with one row for each key.

    Args:
        order: (M,) documents by key and decreasing length.
        key, kept, lengths: (N,) keys, tokens that rows keep, and tokens, of all documents.
        packer: packer with the row length and the alignment.
    """
    size, own = kept[order], key[order]
    placed = np.flatnonzero(size > 0)
    size, own = size[placed], own[placed]
    begins = np.flatnonzero(np.append(True, own[1:] != own[:-1])[: len(own)])
    plan = Plan.plain(
        np.append(begins, len(own)), packer.seq_len, placed, np.zeros_like(size), size,
        lengths[order] - kept[order],
    )  # fmt: skip
    return order, replace(plan, pad_after=-size % packer.multiple)


def joined_plans(parts: Sequence[tuple[NDArray[np.int64], Plan]], count: int) -> Plan:
    """Return one plan over `count` documents with the rows of plans over some of them.

    Args:
        parts: pairs of document indices (M,) and a plan over these M documents. Each document
            belongs to one of the parts.
        count: number of documents.
    """
    rows = offsets_of(np.array([plan.num_rows for _, plan in parts], dtype=np.int64))
    dropped, dropped_with = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for (own, plan), first in zip(parts, rows.tolist(), strict=False):
        dropped[own] = plan.dropped
        if plan.dropped_with is not None:
            drops = plan.dropped_with >= 0
            dropped_with[own[drops]] = plan.dropped_with[drops] + first
    plans = [plan for _, plan in parts]
    return Plan(
        row_offsets=offsets_of(np.concatenate([np.diff(plan.row_offsets) for plan in plans])),
        seq_len=np.concatenate([plan.seq_len for plan in plans]),
        document=np.concatenate([own[plan.document] for own, plan in parts]),
        **{
            name: np.concatenate([getattr(plan, name) for plan in plans])
            for name in ("start", "stop", "overlap", "insert_eos", "pad_after")
        },
        dropped=dropped,
        dropped_with=dropped_with if any(p.dropped_with is not None for p in plans) else None,
    )


@dataclass(frozen=True, slots=True)
class CheckedKeys:
    """Refuse documents with a negative key, which packers would treat as 0.

    Args:
        field: document field with the keys.
    """

    field: str

    def describe(self) -> Mapping[str, Any]:
        """Return nothing, because the packer's limits imply the stage."""
        return {}

    def __call__(self, documents: Documents, place: Any) -> Documents:
        """Return the documents unchanged.

        Raises:
            ConfigError: a key is negative or has more than 63 bits.
        """
        values = documents.document_fields[self.field]
        wrong = np.flatnonzero(values.astype(np.int64) < 0)
        if len(wrong):
            raise ConfigError(
                f'Separate("{self.field}") requires keys from 0 to 2 ** 63 - 1, got '
                f"{values[wrong[0]]}.",
                'Change the value in a map, or declare the field as "text" and store names.',
                setting="limits",
            )
        return documents
