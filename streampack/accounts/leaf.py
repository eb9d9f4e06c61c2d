"""Counting a run's batches: a row stage in lanes, and totals in the state of the loop's process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.accounts.lengths import KeptLengths, lengths_folder
from streampack.accounts.totals import LEDGER, opened, plus
from streampack.batch import PackedBatch
from streampack.documents.blocks import Documents
from streampack.documents.text_keys import text_of_key
from streampack.errors import ConfigError
from streampack.mixtures.source_counts import count_sources
from streampack.sources.error_policy import ErrorPolicy
from streampack.stages.base import Place
from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from streampack.run.rank import RankRun
    from streampack.stages.recipe import Recipe

logger = logging.getLogger(__name__)

#: The field of epochs, unless `document_fields` has one of this name.
EPOCH = "epoch"

#: Counts of a field's values: tokens, documents and loss tokens.
Counts = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a lane counts of a batch; a part of `PackedRows.attached`.

    Attributes:
        digest: hash of the batch's pieces: their documents, slices and slots.
        begins: (D,) bool, True for the first piece of a document.
        epochs: (D,) int32, epochs of the documents, if they are counted by these.
        fields: counts by field and value, once the batch is finished.
    """

    digest: bytes
    begins: NDArray[np.bool_]
    epochs: NDArray[np.int32] | None = None
    fields: Mapping[str, Counts] = field(default_factory=dict)

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return no arrays: nothing of it moves to a device."""
        return {}

    def on_host(self) -> Counted:
        """Return all of it."""
        return self


@dataclass(frozen=True, slots=True)
class CountPieces:
    """Row stage that attaches `Counted`, without fields."""

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        origin, columns = pieces.origin, np.empty((6, len(pieces.start)), dtype=np.int64)
        columns[0], columns[1], columns[2] = origin["source"], origin["shard"], origin["index"]
        columns[3], columns[4], columns[5] = pieces.start, pieces.stop, pieces.slot
        counted = Counted(blake2b(columns.data, digest_size=16).digest(), pieces.begins)
        return rows._replace(attached={**rows.attached, LEDGER: counted})

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows


@dataclass(frozen=True, slots=True)
class Epochs:
    """Block stage that adds the epoch of documents as a field, which batches do not have."""

    def describe(self) -> Mapping[str, Any]:
        """Return no settings: tokens do not depend on it."""
        return {}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        """See `BlockStage`."""
        epochs = np.full(len(documents), place.epoch, dtype=np.int32)
        return replace(documents, document_fields={**documents.document_fields, EPOCH: epochs})


@dataclass(frozen=True, slots=True)
class CountFields(CountPieces):
    """Row stage that attaches `Counted`.

    Attributes:
        fields: fields to count by; True for texts.
        whole: True to count every piece as a document, False to count the first pieces only.
        by_epoch: True if `Epochs` made one of the fields.
    """

    fields: Mapping[str, bool]
    whole: bool = False
    by_epoch: bool = False

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        rows = CountPieces.__call__(self, rows, pieces, held)
        if not self.by_epoch:
            return rows
        places = held.positions(pieces.serial)
        epochs = [block.document_fields[EPOCH][i] for block, i in places]
        counted = replace(rows.attached[LEDGER], epochs=np.array(epochs, dtype=np.int32))
        return rows._replace(attached={**rows.attached, LEDGER: counted})

    def finish(
        self, rows: PackedRows, name: Callable[[Any], str], skips: ErrorPolicy
    ) -> PackedRows:
        """Count when the batch is handed out, since broken images lose their loss then."""
        counted = rows.attached.get(LEDGER)
        if counted is None:  # rows of padding
            return rows
        begins = np.ones(len(rows.source_ids), np.bool_) if self.whole else counted.begins
        fields = {}
        for field_name, texts in self.fields.items():
            column = counted.epochs if self.by_epoch and field_name == EPOCH else None
            column = rows.document_fields[field_name] if column is None else column
            values, which = np.unique(column, return_inverse=True)
            by_value = rows._replace(source_ids=which.astype(np.int32))
            counts = count_sources(by_value, begins, len(values)).tolist()
            names = [_text(value) if texts else str(value) for value in values.tolist()]
            fields[field_name] = dict(zip(names, counts, strict=True))
        attached = {**rows.attached, LEDGER: replace(counted, fields=fields)}
        return rows._replace(attached=attached)


def _text(key: int) -> str:
    try:
        return text_of_key(key)
    except KeyError:  # made in another process, or long ago
        return f"key {key}"


def count(run: RankRun, batch: PackedBatch) -> None:
    """Add a batch that the loop takes to the totals in the run's state."""
    state, topology = run.state, run.plan.topology
    before = state.counted.get(LEDGER)
    entry = opened(before, (topology.rank, topology.world_size))
    if LEDGER not in run.kept:  # the first batch since the start
        run.kept[LEDGER] = True
        missed = _not_counted(run, entry["until"])
        entry["gaps"] = [*entry["gaps"], *missed]
        for first, end in missed:
            logger.warning(
                "The ledger counts from batch %d on: the state has none of batches %d to %d.",
                end,
                first,
                end - 1,
            )
    counted: Counted = batch._attached[LEDGER]
    number = batch.step * run.plan.config.lanes + batch.lane
    entry["own"] = plus(
        entry["own"],
        {
            "digest": f"{hash_of(counted.digest, number):032x}",
            "batches": 1,
            "tokens": batch.num_tokens,
            "documents": batch.composition.documents,
            "loss_tokens": batch.num_loss_tokens,
            "fields": counted.fields,
        },
    )
    entry["until"] = state.next_batch
    state.counted = {**state.counted, LEDGER: entry}


def hash_of(digest: bytes, number: int) -> int:
    """Return a summand of the run's digest: the hash of a batch's `Counted.digest` and index."""
    summand = blake2b(digest + number.to_bytes(8, "little"), digest_size=16)
    return int.from_bytes(summand.digest(), "big")


def _not_counted(run: RankRun, until: int) -> list[list[int]]:
    """Return the range of batches from `until` up to the start that were trained uncounted, if any.

    Up to a turn of all lanes may be empty batches.
    """
    start = run.oldest
    over = sum(max(end - max(first, until), 0) for first, end in run.state.stepped_over)
    return (
        [[until, start]] if start - until - over > (run.plan.config.lanes if until else 0) else []
    )


def add(recipe: Recipe, value: Any) -> None:
    """Let a run keep a ledger.

    Raises:
        ConfigError: a field is not declared, or not of texts or integers; a cap is not a number of
            tokens by a value, or the run has groups; or batches are shared.
    """
    named = value if isinstance(value, Mapping) else {}
    names = [] if value is True else [value] if isinstance(value, str) else [*named] or value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"ledger must be True or names of fields, got {value!r:.100}.",
            'Pass ledger=True or, for example, ledger=["licence"].',
            setting="ledger",
        )
    by_epoch = EPOCH in names and EPOCH not in recipe.fields.document
    for name in [name for name in names if name != EPOCH or not by_epoch]:
        dtype = recipe.fields.document.get(name)
        if dtype is None or dtype.kind not in "iub":
            kind = "not declared" if dtype is None else f"of {dtype}"
            raise ConfigError(
                f'ledger counts by fields of texts or integers, and "{name}" is {kind}.',
                f'Declare it with document_fields={{"{name}": "text"}}.',
                setting="ledger",
            )
    if names and recipe.given.get("layout"):
        raise ConfigError(
            "Trees share tokens between documents, so ledger cannot count them by fields.",
            "Pass ledger=True, which keeps the digest and the totals.",
            setting="ledger",
        )
    if recipe.packer._shares_batches:
        raise ConfigError(
            f"{type(recipe.packer).__name__} lets ranks share batches, which ledger would count "
            "several times.",
            "Leave out ledger=, or cp= of the packer.",
            setting="ledger",
        )
    if any(named.values()):
        _add_caps(recipe, named)
    texts = {name: name in recipe.fields.keys for name in names}
    if by_epoch:
        recipe.fields = recipe.fields.plus(EPOCH, np.int32)
        recipe.add("columns", Epochs())
    stage = CountFields(texts, recipe.whole, by_epoch) if texts else CountPieces()
    recipe.add_rows("units", stage)
    recipe.on_take.append(count)
    recipe.wrappers.append(KeptLengths(lengths_folder()))


def _add_caps(recipe: Recipe, named: Mapping[str, Any]) -> None:
    from streampack.accounts.caps import CAPS, Capped, caps_of, described

    caps = caps_of(named, recipe.fields)
    if recipe.units[0]:
        raise ConfigError(
            "Caps count documents, and records of this run are groups of them.",
            f'Pass ledger=["{caps[0].field}"], which counts without caps.',
            setting="ledger",
        )
    recipe.wrappers.append(Capped(caps))
    recipe.described[CAPS] = described(caps)
