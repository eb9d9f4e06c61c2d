"""PackedDataset: documents in, packed batches out, for one data-parallel rank."""

from __future__ import annotations

import copy
import inspect
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from streampack.arguments import explained_with
from streampack.batch import PackedBatch
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.job.connect import warn_unconnected
from streampack.job.topology import Topology
from streampack.job.wrong_callers import refuse_resharding
from streampack.lane.config import LaneConfig
from streampack.leaves import METHODS, add_leaves, load
from streampack.run.plan import RunPlan, evaluation_lanes, lane_tokens, plan_run, resume_run
from streampack.run.recipe import (
    Recipe,
    check_arguments,
    check_packer,
    checked_counts,
    warn_if_cut,
    warn_unread,
)
from streampack.run.state import RunState
from streampack.sources.infer import as_source
from streampack.tokenization.rules import TokenRules
from streampack.window.config import WindowConfig

if TYPE_CHECKING:
    from streampack.ordering import DocumentOrder
    from streampack.packing import Packer
    from streampack.run.estimation import Estimate
    from streampack.run.explanation import Explanation
    from streampack.run.provenance import Piece
    from streampack.run.worker_share import WorkerShare
    from streampack.stages.base import BlockStage
    from streampack.streams.hooks import Hook, HookFunction


def _elsewhere(argument: str) -> str | None:
    """Where an argument belongs that is one of a setting of the dataset."""
    from streampack.packing import BestFitDecreasing

    kinds = {"packer": BestFitDecreasing, "window": WindowConfig, "token_rules": TokenRules}
    for setting, kind in kinds.items():
        if argument in inspect.signature(kind).parameters:
            needed = "seq_len=..., " if setting == "packer" else ""
            return f"pass {setting}={kind.__name__}({needed}{argument}=...)"
    return None


class PackedDataset(IterableDataset[PackedBatch]):
    """A stream of packed batches.

    Iterate it directly, through a torch ``DataLoader(dataset, batch_size=None, num_workers=n)``,
    or through `PackedLoader`, which keeps the state of what the loop has consumed.

    Args:
        source: a `streampack.sources` source (for several, `Mixture`); a file, folder, URL or
            pattern, or a list of them, in any format that `sources.open` knows; a dataset of
            Hugging Face; a table of pyarrow, pandas or polars; arrays (tokens, offsets) or
            `Documents`; or an iterable of texts, token ids or records. What is none of these is
            refused with what to pass instead.
        seq_len: tokens per row; short for ``packer=BestFitDecreasing(seq_len=seq_len)``, or with
            an order for ``packer=Concat(seq_len=seq_len)``.
        packer: how documents are packed.
        batch_size: rows per batch; None is 8. Of rows of several lengths it counts the longest, and
            None is 1, or what `Buckets` says in tokens.
        tokenizer: for text: a path to tokenizer.json (or its folder), a tokenizers or
            transformers tokenizer, or a `Tokenizer`. Never downloaded.
        processor: for documents with images (`streampack.media.Images`): a processor of
            transformers, or a `streampack.media.ImageModel`, whose tokenizer is used if none is
            given (docs/media.md).
        token_rules: end-of-document and padding ids and the size of the vocabulary, where they are
            not to be taken from the tokenizer.
        attention: "document" keeps documents apart; "row" lets a row attend across them.
        layout: "tree" lays out once what the documents of a record begin with alike; batches are of
            `TreeBatch` (docs/trees.md). A record is in one row then, and takes its slots.
        filter: a function that says which documents stay; it sees them before `map`. A saved state
            knows it by its module and name; a lambda is given one by `Hook`, which says what it
            takes and returns.
        map: a function that changes documents.
        stages: objects that a block of documents passes after `map`, one after the other: called
            with the block and its place, they return the block after them; what their
            ``describe()`` returns is part of the fingerprint. See `examples/own_stage.py`.
        token_fields: what else has one value per token and comes as ``batch.fields[name]``: by the
            name of the column, key or member that holds it, its dtype ("float32"). A map may make
            it instead.
        document_fields: the same with one value per document, as ``batch.document_fields[name]``.
        order: puts related documents one after the other, for example `SimilarityOrder`; goes
            with ``attention="row"`` and a packer that keeps the order.
        window: how far a lane looks ahead.
        seed: of every random decision.
        shuffle: shuffle shards, and documents inside blocks.
        epochs: passes over the source; None is endless.
        lanes: number of lanes, fixed for the whole run, on any number of ranks; None chooses (12
            per rank if the corpus is large enough).
        topology: which data-parallel rank this is; None detects it.
        on_error: "raise" or "skip" broken documents and shards.
        provenance: record where every piece of a batch came from.

    Attributes:
        topology: which data-parallel rank this is.

    Raises:
        ConfigError: settings that cannot work, or a source that has nothing.
    """

    @explained_with(_elsewhere)
    def __init__(
        self,
        source: Any,
        *,
        seq_len: int | None = None,
        packer: Packer | None = None,
        batch_size: int | None = None,
        tokenizer: Any = None,
        processor: Any = None,
        token_rules: TokenRules | None = None,
        attention: Literal["document", "row"] = "document",
        layout: Literal["documents", "tree"] = "documents",
        filter: Hook | HookFunction | None = None,
        map: Hook | HookFunction | None = None,
        stages: Sequence[BlockStage] = (),
        token_fields: Mapping[str, Any] | None = None,
        document_fields: Mapping[str, Any] | None = None,
        order: DocumentOrder | None = None,
        window: WindowConfig | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
        lanes: int | None = None,
        topology: Topology | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        provenance: bool = False,
    ) -> None:
        super().__init__()
        check_arguments(window, topology, token_rules, shuffle=shuffle, provenance=provenance)
        seed, epochs, lanes = checked_counts(seed, epochs, lanes)
        check_packer(seq_len, packer, attention)
        self._detected = topology is None
        self.topology = Topology.detect() if topology is None else topology
        source = as_source(source)
        fields = FieldTypes.of(token_fields, document_fields)
        if fields:
            source = source.with_fields(replace(fields, optional=map is not None))
        source.prepare()  # a path that is wrong is said before anything else about what it holds
        warn_unread(source)
        source.check_epochs(epochs)
        if packer is not None:
            warn_if_cut(source, packer)
        rules = token_rules or TokenRules()
        recipe = Recipe(
            source,
            {
                "order": order,
                "layout": None if layout == "documents" else layout,
                "processor": processor,
                "tokenizer": tokenizer,
                "eos": None if rules.eos == "as-is" else rules.eos,
                "filter": filter,
                "map": map,
                "stages": stages or None,
                "fields": fields or None,
                "provenance": provenance or None,
            },
            fields=fields,
            seq_len=seq_len,
            packer=packer,
            batch_size=batch_size,
            attention=attention,
            window=window,
            rules=rules,
        )
        add_leaves(recipe)
        config = recipe.config(
            lanes=lanes or 0,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            on_error=on_error,
            order=order,
        )
        if lanes:
            source.check_lanes(lanes, seed=seed, shuffle=shuffle)
        self._config = config  # with 0 lanes where their number is to be chosen
        self._plan: RunPlan | None = None
        self._start: RunState | None = None
        self._exchange = uuid.uuid4().hex  # of the worker processes of a DataLoader
        self._evaluates = False  # so that no step is taken after the batches of all ranks
        self._warned = False  # that ranks are not connected

    @classmethod
    @explained_with(_elsewhere)
    def evaluation(
        cls,
        source: Any,
        *,
        seq_len: int | None = None,
        packer: Packer | None = None,
        batch_size: int | None = None,
        tokenizer: Any = None,
        processor: Any = None,
        token_rules: TokenRules | None = None,
        attention: Literal["document", "row"] = "document",
        layout: Literal["documents", "tree"] = "documents",
        filter: Hook | HookFunction | None = None,
        map: Hook | HookFunction | None = None,
        stages: Sequence[BlockStage] = (),
        token_fields: Mapping[str, Any] | None = None,
        document_fields: Mapping[str, Any] | None = None,
        order: DocumentOrder | None = None,
        window: WindowConfig | None = None,
        seed: int = 0,
        epochs: int = 1,
        lanes: int | None = None,
        topology: Topology | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        provenance: bool = False,
    ) -> PackedDataset:
        """A finite, unshuffled dataset: the same documents in the same batches on any ranks.

        Rank r of R gives the batches g with ``g % R == r``, followed by an empty one where others
        have one more. The number of lanes depends on the corpus alone.

        Args:
            source: as for `PackedDataset`, like all that follow but these.
            lanes: None is up to 48, fewer for a small corpus.
            epochs: passes over the source.

        Raises:
            ConfigError: see `PackedDataset`; or it would be endless.
        """
        given = {name: value for name, value in locals().items() if name != "cls"}
        if epochs is None:
            raise ConfigError(
                "epochs is None, and an evaluation ends.",
                "Leave it out; PackedDataset(source, ...) may be endless.",
                setting="epochs",
            )
        dataset = cls(**given, shuffle=False)
        dataset._evaluates = True
        if lanes is None:
            config = dataset._config
            lanes = evaluation_lanes(config.source, window_tokens=lane_tokens(config))
            config.source.check_lanes(lanes, seed=config.seed, shuffle=False)
            dataset._config = replace(config, lanes=lanes)
        return dataset

    def __repr__(self) -> str:
        config, place = self._config, self.topology
        lanes = self._plan.config.lanes if self._plan is not None else config.lanes
        return (
            f"PackedDataset({config.source!r}, packer={config.packer!r}, "
            f"batch_tokens={config.batch_tokens}, lanes={lanes or None}, epochs={config.epochs}, "
            f"seed={config.seed}, rank={place.rank} of {place.world_size})"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"A PackedDataset is a stream without an item {index!r:.40}. Write "
            "next(iter(PackedLoader(dataset))) for its first batch."
        )

    def _check_topology(self) -> None:
        """Raise `ConfigError` if a rank that was detected is no longer this process's."""
        if self._detected:
            self.topology.check_still_detected()

    @property
    def plan(self) -> RunPlan:
        """What is fixed for the whole run: lanes, measured shares and costs, the fingerprint.

        It follows from the arguments alone, or from the state that was loaded, so it is the same
        on every rank and in every worker. Packers or a balance that want a sample read some
        thousand documents when it is first asked for.
        """
        if self._plan is None:
            self._plan = plan_run(self._config, self.topology)
        return self._plan

    def estimate_steps(self) -> Estimate | None:
        """About how many steps the run has, from its beginning, and within what error.

        A step is one batch of every rank. Some thousand documents are read for it, the same on
        every rank. There is no exact number before the run: how many rows documents fill is known
        when they are packed. `PackedLoader.estimate_steps` knows more on the way.

        Returns:
            ``(steps, error)``; None of an endless run, and of generators, functions and
            streams, whose length is not known, unless they are short.
        """
        estimate: Estimate | None = load(METHODS["estimate_steps"])(
            self.plan.config, self.plan.topology
        )
        return estimate

    def explain(self, *, documents: int = 20_000, tokenizer: Any = None) -> Explanation:
        """What the run will read, pack, cut, drop and learn, from a sample: print it.

        Args:
            documents: size of the sample.
            tokenizer: for the row that is shown, if the documents are ids; None shows numbers.

        Raises:
            ConfigError: the source can be read only once, or holds no token.

        Example:
            >>> print(PackedDataset([[1, 2, 3]] * 100, seq_len=8).explain())  # doctest: +SKIP
        """
        alone = self._alone(lanes=1, epochs=1)
        found: Explanation = load(METHODS["explain"])(self.plan, alone, documents, tokenizer)
        return found

    def with_provenance(self) -> PackedDataset:
        """The same dataset, from the same place, with ``provenance=True``: the same batches."""
        other = copy.copy(self)
        other._config = _traced(self._config)
        if self._plan is not None:
            other._plan = replace(self._plan, config=_traced(self._plan.config))
        return other

    def _alone(self, **settings: Any) -> PackedDataset:
        """The same documents in another run, of one rank, with other fields of `LaneConfig`."""
        other = copy.copy(self)
        other._config, other.topology = replace(self._config, **settings), Topology()
        other._detected, other._plan, other._start = False, None, None
        return other

    def locate(self, batch: PackedBatch | NDArray[np.void]) -> list[Piece]:
        """Where every document piece of a batch came from, in the order of its `document_ids`.

        Args:
            batch: of a dataset with ``provenance=True``; or its `provenance`, as it was saved.

        Raises:
            ConfigError: it has no provenance.
        """
        pieces: list[Piece] = load(METHODS["locate"])(self._config.source, batch)
        return pieces

    def text_of(self, piece: Piece, tokenizer: Any = None) -> str:
        """The whole document that a piece is of, read from its shard again.

        It is as the shard holds it, before tokenizer and hooks: a text; a conversation as JSON; of
        ids the text by a tokenizer, or the ids as numbers without one. The tokens of the piece
        alone are ``batch.decode(number, tokenizer)``.

        Args:
            piece: of `locate`.
            tokenizer: for ids, whatever `PackedDataset` takes; None is the dataset's.

        Raises:
            ConfigError: it is of an iterable, of another dataset, or no longer there.
            StorageError: its shard cannot be read.
        """
        given = self._config.preparation.find("tokenizer") if tokenizer is None else tokenizer
        text: str = load(METHODS["text_of"])(self._config.source, piece, given)
        return text

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Start from a saved state instead of the beginning.

        Args:
            state: of this rank, or of all ranks (`merge_states`), of any number of them.
            allow: settings that may differ from the saved ones, of "attention", "batch_size",
                "packer" (with its rows, window, balance and the tokens of a batch) and "source" (a
                mixture with other weights or more sources). What was delivered stays delivered, the
                rest is planned again with the new settings; with another attention alone, rows are
                as they were.

        Raises:
            StateError: the state is of another run (the message names the field and both values),
                damaged, or lacks lanes of this rank.
        """
        self._go_on(*self._resumed(state, allow=allow))

    def _resumed(
        self, state: Mapping[str, Any], *, allow: Collection[str] = ()
    ) -> tuple[RunPlan, RunState]:
        """The plan of a saved run and where it goes on, for a loader, which keeps its state itself.

        Raises:
            StateError: see `load_state_dict`.
        """
        return resume_run(self._config, self.topology, copy.deepcopy(state), allow)

    def _go_on(self, plan: RunPlan, start: RunState) -> None:
        """Start from here instead of the beginning."""
        self._plan, self._start = plan, start
        self._exchange = uuid.uuid4().hex

    def _begins(self) -> RunState:
        """The state that iterating starts from."""
        return self.plan.start() if self._start is None else self._start.copy()

    def _warn_alone(self) -> None:
        """Warn of ranks that are not connected, once."""
        if not self._warned:
            self._warned = True
            warn_unconnected(self.topology)

    def __getstate__(self) -> dict[str, Any]:
        refuse_resharding()  # here, because a spawned worker does not know who asked for it
        self._warn_alone()  # nor whether ranks are connected
        return self.__dict__

    def __iter__(self) -> WorkerShare:
        refuse_resharding()
        info = get_worker_info()
        if info is None:
            self._check_topology()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if worker == 0:
            self._warn_alone()
        start = self._begins()
        name = f"{os.getppid()}-{self._exchange}" if info else None
        sharing = start.sharing(connected=False, name=name)
        share: WorkerShare = load(METHODS["worker_share"])(
            self.plan, start, sharing, worker=worker, workers=workers
        )
        return share


def _traced(config: LaneConfig) -> LaneConfig:
    return replace(config, row_format=load(METHODS["with_provenance"])(config.row_format))
