"""Taking documents out of a run: `exclude`, and the rows that tables deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.exclusion.lookup import Lookup
from streampack.exclusion.mask import Mask, Places, deleted_rows, mask_of, merged
from streampack.exclusion.sets import PLACES, ExcludedSet, excluded_sets, places_in, saved_sets
from streampack.lane.config import LaneConfig
from streampack.sources.base import Source
from streampack.stages.base import ASKED, Place

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe

logger = logging.getLogger(__name__)

#: Key of a run's state: the sets that it was given, each with its path, batch and step.
EXCLUDED = "excluded"


@dataclass(frozen=True)
class Exclusion:
    """The sets of `exclude`, and the lookups of their columns.

    Attributes:
        sets: the sets, in order.
        lookups: `Lookup` of the keys of all sets by column.
        declared: columns that are fields of the run too; True for texts, False for numbers.
    """

    sets: tuple[ExcludedSet, ...]
    lookups: Mapping[str, Lookup]
    declared: Mapping[str, bool]


def with_keys(value: Any, types: FieldSpec) -> tuple[Exclusion, FieldSpec]:
    """Return the exclusion of an argument, and the fields to read with the columns of its keys."""
    sets = excluded_sets(value)
    columns = dict.fromkeys(each.column for each in sets if each.column != PLACES)
    lookups = {
        name: Lookup([key for each in sets if each.column == name for key in each.keys])
        for name in columns
    }
    declared = {name: name in types.keys for name in columns if name in types.document}
    for name in columns:
        if name not in declared:
            types = types.plus(name, np.int64)
            types = replace(types, keys={**types.keys, name: lookups[name]})
    return Exclusion(sets, lookups, declared), types


@dataclass(frozen=True)
class FindKeys:
    """Block stage that finds documents with excluded keys, and gives their places to masks.

    Attributes:
        lookups, declared: as in `Exclusion`.
        targets: masks, each with the keys that it gets documents by: True for their ordinals, by
            column, or all keys of a column that is not named.
    """

    lookups: Mapping[str, Lookup]
    declared: Mapping[str, bool]
    targets: tuple[tuple[Mask, Mapping[str, NDArray[np.bool_]]], ...]

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, block: Any, place: Place) -> Any:
        members = getattr(block, "members", None)
        if members is not None:
            low, high = int(members.offsets[0]), int(members.offsets[-1])
            documents = self(members.documents[low:high], place)
            members = replace(members, documents=documents, offsets=members.offsets - low)
            return replace(block, members=members)
        if not len(block):
            return block
        for name, lookup in self.lookups.items():
            values = block.document_fields.get(name)
            if values is None:
                raise ConfigError(
                    f'exclude= has keys of "{name}", and {place.name(block.origin[0])} has no such '
                    "column.",
                    "Name a column of the records, or pass places that dataset.locate(batch) "
                    "returned.",
                    setting="exclude",
                )
            if name in self.declared:
                values = lookup.of_declared(values, texts=self.declared[name])
            if values.any():
                for mask, known in self.targets:
                    hits = known[name][values] if name in known else values > 0
                    mask.add(place.number, block.origin[hits])
        hidden = [name for name in self.lookups if name not in self.declared]
        if not hidden:
            return block
        fields = {n: v for n, v in block.document_fields.items() if n not in hidden}
        return replace(block, document_fields=fields)


def add(recipe: Recipe, value: Any) -> None:
    """Let a run leave out documents.

    Raises:
        ConfigError: a place is not one of the source.
    """
    places = deleted_rows(recipe.source)
    if value is ASKED:
        recipe.wrappers.append(Mask(places))
        return
    mask = KeyMask(merged(places, places_in(value.sets, recipe.source)), value)
    recipe.wrappers.append(mask)
    if value.lookups:
        recipe.add("texts", FindKeys(value.lookups, value.declared, ((mask, {}),)))
    recipe.described["exclude"] = [each.describe() for each in value.sets]
    recipe.beside[EXCLUDED] = [_event(each, 0, 0) for each in value.sets]


def _event(each: ExcludedSet, batch: int, step: int) -> dict[str, Any]:
    column, keys, digest = each.describe()
    return {
        "column": column, "keys": keys, "digest": digest, "path": each.path, "batch": batch,
        "step": step,
    }  # fmt: skip


class KeyMask(Mask):
    """The mask of a run with `exclude`.

    Args:
        places: places of documents that are known before the run.
        exclusion: the argument.
    """

    def __init__(self, places: Places, exclusion: Exclusion) -> None:
        super().__init__(places)
        self.exclusion = exclusion


def ordinals_of(
    sets: Sequence[ExcludedSet], lookups: Mapping[str, Lookup]
) -> dict[str, NDArray[np.bool_]]:
    """Return where ordinals (K + 1,) of each column's lookup belong to keys in these sets."""
    known = {name: np.zeros(lookup.count + 1, dtype=np.bool_) for name, lookup in lookups.items()}
    for each in sets:
        if each.column in known:
            known[each.column][lookups[each.column].of_texts(each.keys)] = True
    for ordinals in known.values():
        ordinals[0] = False  # of values that are no key
    return known


def restored(config: LaneConfig, before: LaneConfig, state: Mapping[str, Any]) -> LaneConfig:
    """Return `before` with the documents that a state takes out, instead of the ones of `config`.

    Args:
        config: configuration with the documents that are taken out from here on. Its mask gets
            the ones that lanes of the result read.
        before: configuration of the run that saved the state, but for these documents.
        state: the state.

    Raises:
        StateError: documents that the state takes out would be delivered.
    """
    mask, saved = mask_of(config), state["fingerprint"].get("exclude", [])
    exclusion = mask.exclusion if isinstance(mask, KeyMask) else Exclusion((), {}, {})
    sets = saved_sets(exclusion.sets, saved, state.get(EXCLUDED, []))
    old = Mask(merged(deleted_rows(before.source), places_in(sets, before.source)))
    known = ordinals_of(sets, exclusion.lookups)

    def of_before(stage: Any) -> Any:
        if not isinstance(stage, FindKeys):
            return stage
        return replace(stage, targets=(*stage.targets, (old, known)))

    stages = tuple(tuple(map(of_before, each)) for each in before.preparation.stages)
    return replace(
        before,
        preparation=replace(before.preparation, stages=stages),
        wrappers=tuple(old if isinstance(each, Mask) else each for each in before.wrappers),
    )


def with_source(config: LaneConfig, source: Source) -> LaneConfig:
    """Return a configuration with another listing of its source."""
    mask = mask_of(config)
    if isinstance(mask, KeyMask):
        sets = mask.exclusion.sets
        new: Mask = KeyMask(merged(deleted_rows(source), places_in(sets, source)), mask.exclusion)
    else:
        new = Mask(deleted_rows(source))
    config = _with_masks(config, lambda each: new if each is mask else each)
    return replace(config, source=source)


def with_masks_of(config: LaneConfig, number: int) -> LaneConfig:
    """Return a configuration for one source of a run by itself, with masks of its own.

    The masks of the run would take its documents for documents of the first source.

    Args:
        config: configuration of the run.
        number: index of the source in the run.
    """
    masks: dict[int, Mask] = {}
    return _with_masks(config, lambda mask: masks.setdefault(id(mask), mask.of_source(number)))


def _with_masks(config: LaneConfig, new: Callable[[Mask], Mask]) -> LaneConfig:
    """Return a configuration with another mask in the place of each."""

    def of_new(stage: Any) -> Any:
        if not isinstance(stage, FindKeys):
            return stage
        return replace(stage, targets=tuple((new(mask), keys) for mask, keys in stage.targets))

    stages = tuple(tuple(map(of_new, each)) for each in config.preparation.stages)
    return replace(
        config,
        preparation=replace(config.preparation, stages=stages),
        wrappers=tuple(new(each) if isinstance(each, Mask) else each for each in config.wrappers),
    )


def with_events(
    beside: Mapping[str, Any], config: LaneConfig, saved: Mapping[str, Any], batch: int, step: int
) -> dict[str, Any]:
    """Return the values of leaves in a state, with the sets that a run takes out from here on.

    Args:
        beside: the values.
        config: configuration of the run from here on.
        saved: fingerprint of the state.
        batch, step: position of the run.
    """
    mask = mask_of(config)
    if not isinstance(mask, KeyMask):
        return dict(beside)
    before = saved.get("exclude", [])
    new = [each for each in mask.exclusion.sets if each.describe() not in before]
    events = [*beside.get(EXCLUDED, []), *(_event(each, batch, step) for each in new)]
    for event in events[len(events) - len(new) :]:
        logger.info("taken out from batch %d on: %s", batch, _in_words(event))
    return {**beside, EXCLUDED: events}


def _in_words(event: Mapping[str, Any]) -> str:
    what = f'keys of "{event["column"]}"' if event["column"] else "places"
    return f"{event['keys']:,} {what}" + ("" if event["path"] is None else f" ({event['path']})")
