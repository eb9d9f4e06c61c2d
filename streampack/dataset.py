"""PackedDataset: documents in, packed batches out, for one data-parallel rank."""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from streampack.arguments import Explained, explained, takes_arguments_of
from streampack.batch import PackedBatch
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.job.connect import warn_unconnected
from streampack.job.topology import Topology
from streampack.job.wrong_callers import refuse_resharding
from streampack.leaves import add_leaves
from streampack.run.checks import (
    check_arguments,
    check_packer,
    checked_counts,
    prepared,
    warn_if_cut,
)
from streampack.run.plan import RunPlan, evaluation_lanes, lane_tokens, plan_run, resume_run
from streampack.run.recipe import RunRecipe
from streampack.run.state import RunState
from streampack.sources.arguments import NamedFields
from streampack.sources.resolve import as_source
from streampack.stages.token_rules import TokenRules
from streampack.window.config import WindowConfig

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streampack.forecasts.estimation import Estimate
    from streampack.forecasts.explanation import Explanation
    from streampack.forecasts.provenance import Piece
    from streampack.hooks.stages import Hook, HookFunction
    from streampack.ledger.seen import Seen
    from streampack.ordering import DocumentOrder
    from streampack.packing import Packer
    from streampack.stages.base import BlockStage
    from streampack.workers.share import WorkerShare


class PackedDataset(Explained, IterableDataset[PackedBatch]):
    """A stream of packed batches for one data-parallel rank.

    Example:
        >>> from streampack import PackedDataset
        >>> documents = [[1, 2, 3], [4, 5], [6, 7, 8]]
        >>> dataset = PackedDataset(documents, seq_len=8, batch_size=1, shuffle=False)
        >>> next(iter(dataset)).input_ids.shape
        torch.Size([1, 8])

    Iterate it directly, through a torch ``DataLoader(dataset, batch_size=None, num_workers=n)``,
    or through `PackedLoader`, which keeps the exact state of the training loop.

    Args:
        source: documents to pack. A `streampack.sources` source (`Mixture` for several); a file,
            folder, URL or pattern, or a list of them, in a format that `sources.open` supports; a
            Hugging Face dataset; a table of pyarrow, pandas or polars; arrays (tokens, offsets) or
            `Documents`; or an iterable of texts, token ids or records. Anything else raises
            `ConfigError`, which lists the accepted types.
        text: the field or column with the documents, as texts. ``PackedDataset(path, text="body")``
            is short for ``PackedDataset(sources.open(path, text="body"))``.
        tokens: the field or column with the documents, as token ids.
        loss_mask: the fields with loss masks or labels of the ids; see `sources.open`.
        seq_len: tokens per row. Short for ``packer=BestFitDecreasing(seq_len=seq_len)``, or with
            an order for ``packer=Concat(seq_len=seq_len)``.
        packer: packing algorithm, for another one than the default of `seq_len`.
        batch_size: rows per batch; None is 8. For rows of several lengths it counts the longest
            rows, and None is 1, or the batch size in tokens that `Buckets` sets.
        tokenizer: tokenizer for text: a path to tokenizer.json (or its folder), a tokenizers or
            transformers tokenizer, or a `Tokenizer`. Never downloaded.
        processor: processor for documents with images (`streampack.images.Images`): a transformers
            processor or a `streampack.images.ImageModel`. Its tokenizer is the default of
            `tokenizer` (docs/media.md).
        token_rules: end-of-document id, padding id and vocabulary size, if the tokenizer's values
            do not apply or there is no tokenizer.
        attention: "document" isolates the documents of a row; "row" lets a row attend across them.
        layout: "tree" stores a prefix shared by the documents of a record once, and gives batches
            of type `TreeBatch` (docs/trees.md). Each record is then placed in one row, and takes
            its slots.
        filter: function that selects documents, applied before `map`. A saved state identifies it
            by module and name; wrap a lambda in `Hook` to name it. `Hook` documents arguments and
            return value.
        map: function that changes documents; see `Hook`.
        stages: objects applied to every block of documents, in order, after `map`. Each is called
            with the block and its `Place` and returns a block; the result of its ``describe()``
            is part of the fingerprint. See `examples/own_stage.py`.
        token_fields: further values per token, delivered as ``batch.fields[name]``. Maps the name
            of a column, key or member to a dtype such as "float32", or for several numbers per
            token to a dtype and their shape, such as ``("int16", (48, 8))``. A map may create the
            values.
        document_fields: further values per document, delivered as
            ``batch.document_fields[name]``, declared like `token_fields`. "text" declares texts,
            such as names, which become integer keys (`streampack.documents.text_keys`).
        order: places related documents next to each other, for example `SimilarityOrder`; use it
            with ``attention="row"`` and a packer that keeps the order.
        window: how far a lane looks ahead when it packs; a larger window reduces padding but uses
            more memory.
        seed: seed of every random decision.
        shuffle: shuffle shards, and documents inside blocks.
        epochs: passes over the source; None is endless.
        lanes: number of lanes (parts of the corpus that are read side by side), fixed for the whole
            run on any number of ranks; None chooses (12 per rank if the corpus is large enough).
        topology: index and number of data-parallel ranks; None detects them.
        on_error: "raise" stops at broken documents and shards; "skip" counts and skips them.
        exclude: documents to leave out, also of a run that goes on (docs/ledger.md): keys of a
            column, ``{"id": ["a", 7]}``; a file with a key per line, ``{"id": "withdrawn.txt"}``;
            places that `locate` returned, or their texts; a file of these; or a list of several.
        provenance: record the origin of every piece of a batch, for `locate`.
        ledger: True keeps a digest of the batches and totals in the state, and lengths of documents
            in the cache folder; names of `document_fields` count tokens by their values too,
            and ``{"domain": {"web": 1_000_000_000}}`` also delivers at most so many tokens of a
            value (docs/ledger.md).

    Attributes:
        topology: index of this data-parallel rank, and the number of ranks.

    Raises:
        ConfigError: settings cannot work, or the source is empty.
    """

    @explained
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
        exclude: Any = None,
        provenance: bool = False,
        ledger: bool | Sequence[str] | Mapping[str, Any] = False,
        **columns: Unpack[NamedFields],
    ) -> None:
        super().__init__()
        check_arguments(window, topology, token_rules, shuffle=shuffle, provenance=provenance)
        seed, epochs, lanes = checked_counts(seed, epochs, lanes)
        check_packer(seq_len, packer, attention)
        self._detected = topology is None
        self.topology = Topology.detect() if topology is None else topology
        fields = FieldSpec()
        if token_fields is not None or document_fields is not None:
            from streampack.fields.declared import declared_fields

            fields = declared_fields(token_fields, document_fields)
        read = replace(fields, optional=bool(map or stages))
        if exclude is not None:
            from streampack.exclusion.leaf import with_keys

            exclude, read = with_keys(exclude, read)
        source = prepared(as_source(source, **columns), read)
        source._check_epochs(epochs, bool(shuffle))
        if packer is not None:
            warn_if_cut(source, packer)
        rules = token_rules or TokenRules()
        recipe = RunRecipe(
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
                "exclude": exclude,
                "ledger": ledger or None,
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
            source._check_lanes(lanes, seed=seed, shuffle=shuffle)
        self._config = config  # 0 lanes until their number is chosen
        self._plan: RunPlan | None = None
        self._start: RunState | None = None
        self._exchange = uuid.uuid4().hex  # shared by the worker processes of a DataLoader
        self._evaluates = False  # True for an evaluation, in which batches are not a training step
        self._warned = False  # True once a warning about unconnected ranks was logged

    @classmethod
    @explained
    @takes_arguments_of(__init__, but="shuffle")
    def evaluation(
        cls, source: Any, *, epochs: int = 1, lanes: int | None = None, **settings: Any
    ) -> PackedDataset:
        """Make a finite, unshuffled dataset with the same batches on any number of ranks.

        Rank r of R gives the batches g with ``g % R == r``, and an empty batch at the end if other
        ranks have one more. The number of lanes depends on the corpus alone.

        Args:
            source: as for `PackedDataset`.
            epochs: passes over the source.
            lanes: number of lanes; None chooses up to 48, fewer for a small corpus.
            settings: all other arguments of `PackedDataset` but `shuffle`.

        Raises:
            ConfigError: see `PackedDataset`; or `epochs` is None.
        """
        if epochs is None:
            raise ConfigError(
                "epochs must be a number for an evaluation, got None.",
                "Leave it out; PackedDataset(source, ...) may be endless.",
                setting="epochs",
            )
        dataset = cls(source, epochs=epochs, lanes=lanes, shuffle=False, **settings)
        dataset._evaluates = True
        if lanes is None:
            config = dataset._config
            lanes = evaluation_lanes(config.source, window_tokens=lane_tokens(config))
            config.source._check_lanes(lanes, seed=config.seed, shuffle=False)
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

    def __str__(self) -> str:
        from streampack.forecasts.summary import summary

        return str(self._plan) if self._plan else summary(self._config, self.topology)

    def _check_topology(self) -> None:
        """Raise `ConfigError` if a rank that was detected is no longer this process's."""
        if self._detected:
            self.topology.check_still_detected()

    @property
    def plan(self) -> RunPlan:
        """The fixed settings of the run: lanes, measured shares and costs, the fingerprint.

        The plan follows from the arguments alone, or from the loaded state, so it is the same on
        every rank and in every worker. If a packer or a balance measures on a sample, the first
        access reads some thousand documents.
        """
        if self._plan is None:
            self._plan = plan_run(self._config, self.topology)
        return self._plan

    def estimate_steps(self) -> Estimate | None:
        """Estimate the steps of the whole run, with an error.

        A step is one batch of every rank. The estimate reads some thousand documents, the same on
        every rank. There is no exact number before the run, because rows are counted when documents
        are packed. `PackedLoader.estimate_steps` is more accurate during the run.

        Returns:
            ``(steps, error)``; None for an endless run, and for generators, functions and streams,
            which have no known length, unless they are short.
        """
        from streampack.forecasts.estimation import estimate_steps

        return estimate_steps(self.plan.config, self.plan.topology)

    def explain(self, *, documents: int = 20_000, tokenizer: Any = None) -> Explanation:
        """Forecast from a sample how the run reads, packs, cuts and drops tokens; print the result.

        Example:
            >>> print(PackedDataset([[1, 2, 3]] * 100, seq_len=8).explain())  # doctest: +SKIP

        Args:
            documents: size of the sample.
            tokenizer: decodes the example row if the documents are ids; None shows numbers.

        Raises:
            ConfigError: the source can be read only once, or holds no token.
        """
        from streampack.forecasts.explanation import explain

        return explain(self.plan, self._alone(lanes=1, epochs=1), documents, tokenizer)

    def with_provenance(self) -> PackedDataset:
        """Return this dataset at its state with ``provenance=True``; batches are unchanged."""
        from streampack.forecasts.origins import traced

        other = copy.copy(self)
        other._config = traced(self._config)
        if self._plan is not None:
            other._plan = replace(self._plan, config=traced(self._plan.config))
        return other

    def _alone(self, **settings: Any) -> PackedDataset:
        """Return the same documents as a run of one rank, with other fields of `LaneConfig`."""
        other = copy.copy(self)
        other._config, other.topology = replace(self._config, **settings), Topology()
        other._detected, other._plan, other._start = False, None, None
        return other

    def locate(self, batch: PackedBatch | NDArray[np.void]) -> list[Piece]:
        """Return the origin of every document piece of a batch, in the order of `document_ids`.

        Args:
            batch: batch of a dataset with ``provenance=True``, or its saved `provenance`.

        Raises:
            ConfigError: the batch has no provenance.
        """
        from streampack.forecasts.provenance import locate

        return locate(self._config.source, batch)

    def seen(self, state: Any, documents: Any, *, batches: int | None = None) -> Iterator[Seen]:
        """Find documents in the batches of a run, as ``streampack ledger`` does (docs/ledger.md).

        The run is made once more from its beginning, in this process and as one rank, on the
        lengths that it kept (`ledger`); where there are none the corpus is read and tokenized.

        Args:
            state: state of all ranks.
            documents: keys of columns or places, as for `exclude`.
            batches: number of batches after the state; None is up to the end of the run.

        Returns:
            A `Seen` for each piece in order: batch, row, piece, and whether it is delivered.

        Raises:
            ConfigError: the run never ends, and `batches` is None.
            StateError (while iterating): the batches before the state are not reproduced, since
                settings of the run changed on a resume.
        """
        from streampack.ledger.seen import seen

        return seen(self, state, documents, batches=batches)

    def text_of(self, piece: Piece, tokenizer: Any = None) -> str:
        """Read the whole document of a piece from its shard.

        The result is the stored document, before tokenizer and hooks: a text; a conversation as
        JSON; token ids decoded by a tokenizer, or as numbers without one. For the tokens of the
        piece alone use ``batch.decode(number, tokenizer)``.

        Args:
            piece: a piece returned by `locate`.
            tokenizer: decodes ids; any tokenizer that `PackedDataset` accepts; None is the
                dataset's.

        Raises:
            ConfigError: the piece comes from an iterable or another dataset, or its document no
                longer exists.
            StorageError: its shard cannot be read.
        """
        from streampack.forecasts.provenance import text_of

        encoder = self._config.preparation.find("tokenizer") if tokenizer is None else tokenizer
        return text_of(self._config.source, piece, encoder)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Start from a saved state instead of the beginning.

        Args:
            state: state of this rank, or of all ranks (`merge_states`) of a run on any number of
                ranks.
            allow: settings that may differ from the saved ones: "attention", "batch_size",
                "packer" (with its rows, window, balance and the tokens of a batch) and "source" (a
                mixture with other weights or more sources, a table at a later version). Delivered
                tokens stay delivered, and
                the rest is replanned with the new settings; if only attention differs, rows are
                unchanged.

        Raises:
            StateError: the state belongs to another run (the message names the field and both
                values), is damaged, or lacks lanes of this rank.
        """
        plan, start = resume_run(self._config, self.topology, state, allow)
        self._continue_from(plan, start)

    def _continue_from(self, plan: RunPlan, start: RunState) -> None:
        """Start from this plan and state instead of the beginning."""
        self._plan, self._start = plan, start
        self._exchange = uuid.uuid4().hex

    def _begins(self) -> RunState:
        """Return the state that iteration starts from."""
        return self.plan.start() if self._start is None else self._start.copy()

    def _warn_alone(self) -> None:
        """Warn once about ranks that are not connected."""
        if not self._warned:
            self._warned = True
            warn_unconnected(self.topology)

    def __getstate__(self) -> dict[str, Any]:
        refuse_resharding()  # here, because a spawned worker does not know its parent
        self._warn_alone()  # here too: a worker does not know
        return self.__dict__

    def __iter__(self) -> WorkerShare:
        refuse_resharding()
        info = get_worker_info()
        if info is None:
            self._check_topology()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if worker == 0:
            self._warn_alone()
        from streampack.workers.share import WorkerShare

        start = self._begins()
        name = f"{os.getppid()}-{self._exchange}" if info else None
        sharing = start.sharing(connected=False, name=name)
        return WorkerShare(self.plan, start, sharing, worker=worker, workers=workers)
