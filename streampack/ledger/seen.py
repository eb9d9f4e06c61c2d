"""Find documents in the batches of a run, before and after a saved state.

A run is made once more from its beginning, by one rank and without training. Batches are a pure
function of settings, seed and corpus, so they are the batches of the run: the windows of all lanes
are compared with the state. Documents that the run takes out since some batch are taken out there.
Lengths suffice where a run kept them (`ledger.replay`), unless its plans see more of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampack.accounts.leaf import CountPieces, hash_of
from streampack.accounts.lengths import KeptLengths, lengths_folder
from streampack.accounts.totals import LEDGER, totals_of
from streampack.batch.kinds import kind_of
from streampack.dataset import PackedDataset
from streampack.errors import ConfigError, StateError
from streampack.exclusion.leaf import EXCLUDED, Exclusion, FindKeys, KeyMask, ordinals_of, with_keys
from streampack.exclusion.lookup import Lookup
from streampack.exclusion.mask import Mask, deleted_rows, mask_of, merged
from streampack.exclusion.sets import places_in, saved_sets
from streampack.forecasts.origins import Provenance, traced
from streampack.forecasts.provenance import Piece, locate
from streampack.lane.config import LaneConfig, LaneShare
from streampack.lane.rotation import rotate
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.ledger.replay import Replayed
from streampack.mixtures.source_counts import CountedSources
from streampack.run.plan import resume_run
from streampack.run.state import RunState
from streampack.window.gather import RowFormat

#: Values of a lane's state that a replay must reproduce.
_COMPARED = ("round", "step", "emitted", "digest")


@dataclass(frozen=True, slots=True)
class Seen:
    """A piece of a document in a batch.

    Attributes:
        batch: index of the batch in the run; with R ranks it is the batch of rank ``batch % R`` in
            step ``batch // R``, counted from 0.
        row: index of the row; None for a sequence of a tree that has no slot of its own.
        piece: origin of the piece.
        delivered: True if the batch lies before the state, False if it is to come.
    """

    batch: int
    row: int | None
    piece: Piece
    delivered: bool


def seen(
    dataset: PackedDataset,
    state: Mapping[str, Any],
    documents: Any,
    *,
    batches: int | None = None,
    replayed: Replayed | None = None,
) -> Iterator[Seen]:
    """Yield the pieces of documents in the batches of a run, in order.

    Args:
        dataset: the run's dataset, for one rank, as it is now.
        state: state of all ranks.
        documents: keys of columns or places, as for ``exclude=``.
        batches: number of batches after the state; None is up to the end of the run.
        replayed: replays lanes on lengths, and counts documents; None is one of `lengths_folder`.

    Raises:
        ConfigError: the run never ends, and `batches` is None.
        StateError: the batches before the state are not reproduced, since other settings of the
            run changed on a resume.
    """
    config = dataset._config
    if config.epochs is None and batches is None:
        raise ConfigError(
            "An endless run needs a number of batches, got none.",
            "Pass a number of batches after the state (--steps).",
            setting="batches",
        )
    ledger = _Ledger(dataset, state, documents, replayed or Replayed(lengths_folder()))
    target = state["next_batch"]
    for begin, end in ledger.intervals(target):
        ledger.begin(begin)
        yield from ledger.found_in(end, delivered=True)
    ledger.begin(target)
    ledger.compare()
    last = None if batches is None else target + batches
    yield from ledger.found_in(last, delivered=False)


class _Ledger:
    """The lanes that replay a run, opened anew where it took further documents out."""

    def __init__(
        self,
        dataset: PackedDataset,
        state: Mapping[str, Any],
        documents: Any,
        replayed: Replayed,
    ) -> None:
        self._dataset, self._state = dataset, state
        self._run: RunState | None = None
        self._items: Iterator[LaneBatch | LaneEnd] = iter(())
        self._following: LaneBatch | LaneEnd | None = None  # taken from them too early
        self._digest, self._total = _digest(state), 0
        self._events = state.get(EXCLUDED, [])
        config = dataset._config
        mask = mask_of(config)
        taken = mask.exclusion if isinstance(mask, KeyMask) else Exclusion((), {}, {})
        self._sets = taken.sets
        asked, types = with_keys(documents, config.source.field_types)
        self._asked = asked.sets
        lookups = {}
        for name in {**taken.lookups, **asked.lookups}:
            both = [each[name].keys() for each in (taken.lookups, asked.lookups) if name in each]
            lookups[name] = Lookup([key for keys in both for key in keys])
        declared = {**asked.declared, **taken.declared}
        declared = {n: text for n, text in declared.items() if n not in _hidden(taken)}
        self._exclusion = Exclusion(taken.sets, lookups, declared)
        for name in lookups:
            if name not in declared:
                types = replace(
                    types.plus(name, np.int64), keys={**types.keys, name: lookups[name]}
                )
        self._source = config.source
        if lookups:
            self._source = config.source._with_fields(types)
            self._source.prepare()
        self._watch = Mask(places_in(self._asked, self._source))
        self._replayed = replace(replayed, watch=self._watch)

    def intervals(self, target: int) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of batches before `target` with one set taken out."""
        bounds = sorted({0, target, *(event["batch"] for event in self._events)})
        return [(begin, end) for begin, end in pairwise(bounds) if begin < target]

    def begin(self, batch: int) -> None:
        """Go on at a batch, where the replay stopped, with the documents that it lacks."""
        before = self._run
        if before is not None and not any(each["batch"] == batch for each in self._events):
            return
        dataset = self._dataset._alone()
        dataset._config = self._config_at(batch)
        if before is None:
            plan, run = dataset.plan, dataset.plan.start()
        else:
            plan, run = resume_run(dataset._config, dataset.topology, before.as_dict(), ())
        self._run, config = run, plan.config
        config = replace(config, beside=config.source._live(run.beside))
        channel = run.sharing(connected=False)
        share = LaneShare(config, plan.topology, run.next_batch, run.states())
        self._items = rotate(share, channel, channel.exchange(config.dealing))
        self._following = None

    def _config_at(self, batch: int) -> LaneConfig:
        """Return the configuration with the documents that batch `batch` lacks."""
        described = [
            (event["column"], event["keys"], event["digest"])
            for event in self._events
            if event["batch"] <= batch
        ]
        sets = saved_sets(self._sets, described, self._events)
        config = traced(self._dataset._config)
        places = merged(deleted_rows(self._source), places_in(sets, self._source))
        mask = KeyMask(places, replace(self._exclusion, sets=sets))
        lookups = self._exclusion.lookups
        targets = (
            (mask, ordinals_of(sets, lookups)),
            (self._watch, ordinals_of(self._asked, lookups)),
        )
        finder = (FindKeys(lookups, self._exclusion.declared, targets),) if lookups else ()
        preparation = config.preparation
        stages = tuple(
            (*finder, *(stage for stage in each if not isinstance(stage, FindKeys)))
            for each in preparation.stages
        )
        values = {name: value for name, value in preparation.described.items() if name != "exclude"}
        if sets:
            values["exclude"] = [each.describe() for each in sets]
        others = [each for each in config.wrappers if not isinstance(each, Mask | KeptLengths)]
        source = self._source
        if not sees_contents(config):
            from streampack.ledger.shards import by_lengths

            rows = _on_lengths(config.row_format, counts=self._digest is not None)
            config = replace(config, row_format=rows)
            others.append(self._replayed)
            if config.on_error == "raise":  # otherwise a run may skip documents for their ids
                source = by_lengths(source, stages)
        return replace(
            config,
            source=source,
            lanes=self._state["fingerprint"]["lanes"],
            preparation=replace(preparation, stages=stages, described=values),
            wrappers=(*([mask] if sets or places else []), *others),
        )

    def found_in(self, end: int | None, *, delivered: bool) -> Iterator[Seen]:
        """Yield the pieces in the batches before batch `end`; None is the end of the run."""
        run, lanes = self._run, self._state["fingerprint"]["lanes"]
        assert run is not None
        every = sees_contents(self._dataset._config)
        while (item := self._following or next(self._items, None)) is not None:
            number = item.step * lanes + item.lane
            self._following = item if end is not None and number >= end else None
            if self._following is not None:
                return
            run.commit(item.lane, item.step, partial(item.start.state, item.emitted))
            if isinstance(item, LaneEnd) or not len(item.rows.source_ids):
                continue
            if (counted := item.rows.attached.get(LEDGER)) is not None:
                self._total += hash_of(counted.digest, number)
            if every or item.lane in self._replayed.lanes:
                yield from self._pieces(item, number, delivered=delivered)

    def _pieces(self, item: LaneBatch, number: int, *, delivered: bool) -> Iterator[Seen]:
        """Yield the pieces of a batch with documents."""
        provenance = item.rows.provenance
        assert provenance is not None
        hits = np.flatnonzero(self._watch.hits(provenance))
        if not len(hits):
            return
        ids = kind_of(item.rows).of_lane(item).document_ids
        pieces = locate(self._source, provenance[hits])
        for i, piece in zip(hits.tolist(), pieces, strict=True):
            rows = (ids == i).any(dim=1).nonzero().flatten().tolist()
            yield Seen(number, rows[0] if rows else None, piece, delivered)

    def compare(self) -> None:
        """Raise `StateError` unless all lanes are where the saved state has them."""
        run = self._run
        assert run is not None
        for lane, saved in self._state["lanes"].items():
            pairs = [
                tuple((each or {}).get(name) for name in _COMPARED)
                for each in (saved, run.lane(int(lane)))
            ]
            if pairs[0] != pairs[1]:
                raise _not_reproduced(f"lane {lane} is at {pairs[1]}, not at {pairs[0]}")
        digest = f"{self._total % (1 << 128):032x}"
        if self._digest not in (None, digest) and not self._state["stepped_over"]:
            raise _not_reproduced(f"their digests are {self._digest} and {digest}")


def sees_contents(config: LaneConfig) -> bool:
    """Return True if the plans of a run depend on more of documents than lengths and numbers."""
    return config.order is not None or bool(config.row_format.units[0])


def _on_lengths(rows: RowFormat, *, counts: bool) -> RowFormat:
    """Return the layout of the same rows without the stages that need contents of documents.

    `counts` is True to keep the digest of each batch.
    """
    kept = [stage for stage in rows.stages if isinstance(stage, Provenance | CountedSources)]
    return replace(rows, stages=(*kept, CountPieces()) if counts else tuple(kept))


def _digest(state: Mapping[str, Any]) -> str | None:
    """Return the digest of all batches before a state; None if its ledger has not all of them."""
    entry = state.get("counted", {}).get(LEDGER)
    if entry is None or entry["gaps"] or entry["until"] != state["next_batch"]:
        return None
    digest: str = totals_of(state)["digest"]
    return digest if entry["rank"][1] == 1 else None


def _hidden(exclusion: Exclusion) -> set[str]:
    """Return the columns that a run reads for its keys alone."""
    return {name for name in exclusion.lookups if name not in exclusion.declared}


def _not_reproduced(what: str) -> StateError:
    return StateError(
        f"The replay must give the batches before the state, and {what}.",
        "Name the dataset with the settings of the run; if load_state_dict(allow=) changed them, "
        "earlier batches can be found from an earlier state only.",
    )
