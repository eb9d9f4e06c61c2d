"""PackedDataset: documents in, packed batches out, for one data-parallel rank."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from torch.utils.data import IterableDataset, get_worker_info

from streampack.assembly import RowFormat
from streampack.balancing import checked_balance
from streampack.batch import PackedBatch
from streampack.dataset_iterator import DatasetIterator
from streampack.errors import ConfigError
from streampack.fingerprint import changed_fields
from streampack.hooks import Hook
from streampack.lane import LaneConfig
from streampack.ordering import DocumentOrder
from streampack.packing import (
    BestFitDecreasing,
    Buckets,
    Concat,
    FirstFitDecreasing,
    Packer,
    Pad,
)
from streampack.replanning import carry_over, previous_config
from streampack.resharding import refuse_resharding
from streampack.sizing import choose_lanes, with_balance, with_shares
from streampack.sources.base import Source
from streampack.sources.chat import Chat
from streampack.sources.infer import as_source
from streampack.sources.mixture import Mixture, sources_of
from streampack.state import RunState, batches_due, check_state
from streampack.stream import Preparation
from streampack.tokenization import ChatTokenizer, EosRule, Tokenizer, load_tokenizer
from streampack.topology import Topology
from streampack.window_config import WindowConfig

__all__ = ["PackedDataset"]

logger = logging.getLogger(__name__)

TOKENS_PER_DOCUMENT = 1024  # assumed for an ordering window's size; web text has 700 to 1,000


class PackedDataset(IterableDataset[PackedBatch]):
    """A stream of packed batches.

    Iterate it directly, through a torch ``DataLoader(dataset, batch_size=None, num_workers=n)``,
    or through `PackedLoader`, which keeps the state of what the loop has consumed.

    Args:
        source: a `streampack.sources` source (for several, `Mixture`), a path or URL of Parquet
            or JSON-lines files, or an iterable of texts or token ids.
        seq_len: tokens per row; short for ``packer=BestFitDecreasing(seq_len=seq_len)``, or with
            an order for ``packer=Concat(seq_len=seq_len)``.
        packer: how documents are packed.
        batch_tokens: tokens per batch, a multiple of the row length; None is one row.
        tokenizer: for text: a path to tokenizer.json (or its folder), a tokenizers or
            transformers tokenizer, or a `Tokenizer`. Never downloaded.
        eos: "ensure" (append an end-of-document id where missing), "append" or "as-is"; None is
            "ensure" for text and "as-is" for token ids.
        eos_id, pad_id: None takes them from the tokenizer. Without a pad id, padding is filled
            with id 0, which nothing reads: it has attention segments of its own and no loss.
        vocab_size: ids must be below it; None takes it from the tokenizer.
        attention: "document" keeps documents apart; "row" lets a row attend across them.
        filter, map: hooks, see `Hook`; the filter sees documents first.
        order: puts related documents one behind the other, for example `SimilarityOrder`; goes
            with ``attention="row"`` and a packer that keeps the order.
        balance: "attention" gives every rank batches whose attention costs about the same in
            each step; None goes by no costs. See docs/balance.md.
        window: how far a lane looks ahead.
        seed: of every random decision.
        shuffle: shuffle shards, and documents inside blocks.
        epochs: passes over the source; None is endless.
        lanes: number of lanes, fixed for the whole run; None chooses (12 per rank if the corpus
            is large enough).
        topology: which data-parallel rank this is; None detects it.
        on_error: "raise" or "skip" broken documents and shards.
        provenance: record where every piece of a batch came from.
        memory_limit: bytes for the windows and readers of one rank, if lanes is None.

    Raises:
        ConfigError: settings that cannot work, or a source that has nothing.
    """

    def __init__(
        self,
        source: Any,
        *,
        seq_len: int | None = None,
        packer: Packer | None = None,
        batch_tokens: int | None = None,
        tokenizer: Any = None,
        eos: EosRule | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        vocab_size: int | None = None,
        attention: Literal["document", "row"] = "document",
        filter: Hook | None = None,
        map: Hook | None = None,
        order: DocumentOrder | None = None,
        balance: Literal["attention"] | None = None,
        window: WindowConfig | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
        lanes: int | None = None,
        topology: Topology | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        provenance: bool = False,
        memory_limit: int = 2 << 30,
    ) -> None:
        super().__init__()
        for name, value, kind in (
            ("packer", packer, Packer),
            ("seq_len", seq_len, int),
            ("batch_tokens", batch_tokens, int),
            ("window", window, WindowConfig),
            ("seed", seed, int),
            ("epochs", epochs, int),
            ("lanes", lanes, int),
            ("topology", topology, Topology),
            ("memory_limit", memory_limit, int),
        ):
            if value is not None and not isinstance(value, kind):
                raise ConfigError(
                    f"{name} is {value!r}.", "It is of another kind.", f"Pass a {kind.__name__}."
                )
        _check_order(order)
        source = as_source(source)
        packer = _choose_packer(seq_len, packer, order, source)
        batch_tokens = _check_batch_tokens(batch_tokens, packer)
        _check_choices(attention, epochs, lanes)
        schedule = checked_balance(balance, attention, packer)
        self.topology = Topology.detect() if topology is None else topology
        self._memory_limit = memory_limit
        self._lanes_chosen = lanes is None
        self._shares_measured = isinstance(packer, Buckets) and packer.shares is None
        self._loaded: Mapping[str, Any] | None = None
        preparation, row_format = _prepare(source, tokenizer, eos, eos_id, pad_id, vocab_size)
        if packer.inserts_eos and row_format.eos_id < 0:
            raise ConfigError(
                f"{type(packer).__name__} ends pieces of long documents with an EOS, and its id is "
                "unknown.",
                "Pieces would look like whole documents.",
                "Pass eos_id=, or a tokenizer that declares it.",
            )
        source.prepare()
        if isinstance(source, Mixture):
            source.check_epochs(epochs)
        self._config = LaneConfig(
            source=source,
            lanes=lanes or 0,  # 0: chosen when the number of workers is known
            preparation=replace(preparation, filter=filter, map=map),
            packer=packer,
            window=(window or WindowConfig()).resolve(
                packer, batch_tokens, balanced=schedule is not None
            ),
            batch_tokens=batch_tokens,
            row_format=replace(
                row_format,
                attention_by_row=attention == "row",
                mask_repeated=bool(getattr(packer, "mask_repeated", False)),
                provenance=provenance,
            ),
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            on_error=on_error,
            order=order,
            balance=schedule,
        )
        if lanes:
            self.topology.require(lanes)
            source.check_lanes(lanes, seed=seed, shuffle=shuffle)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Start from a saved state instead of the beginning.

        Args:
            state: of this rank, or of all ranks (`merge_states`), of any number of them.
            allow: settings that may differ from the saved ones, of "balance", "batch_tokens",
                "packer", "window" and "source" (a mixture with other weights or more sources). What
                was delivered stays delivered, the rest is planned anew with the new settings.

        Raises:
            StateError: the state is of another run (the message names the field and both values),
                damaged, or lacks lanes of this rank.
        """
        self._config, run = self.resume(state, allow=allow)
        self._loaded = copy.deepcopy(run.as_dict())

    def resume(
        self, state: Mapping[str, Any], *, allow: Collection[str] = ()
    ) -> tuple[LaneConfig, RunState]:
        """What a saved state asks for: the lanes' configuration, and where they go on.

        Raises:
            StateError: see `load_state_dict`.
        """
        check_state(state)
        saved = state["fingerprint"]
        config = self._config
        if self._lanes_chosen:  # here; the run has its own number
            config = replace(config, lanes=saved["lanes"])
        self.topology.require(config.lanes)
        if self._shares_measured:  # here; the run has its own
            config = with_shares(config, saved["packer"])
        config = with_balance(config, saved)
        now = _fingerprint(config)
        changed = changed_fields(saved, now, allow)
        run = RunState.of_rank(state, now, self.topology)
        if changed:
            before = previous_config(config, saved, now, changed)
            run.replan(
                lambda lane, own: carry_over(
                    before, config, lane, own, batches_due(lane, run.next_batch, config.lanes)
                )
            )
        return config, run

    def lane_config(self, workers: int = 1) -> LaneConfig:
        """The lanes' configuration, with what is chosen or measured for so many workers."""
        if not self._config.lanes:
            config = self._config
            assert config.window.window_tokens is not None
            lanes = choose_lanes(
                config.source,
                self.topology,
                workers,
                window_tokens=config.window.window_tokens + _ordering_tokens(config.order),
                memory_limit=self._memory_limit,
            )
            self._config = replace(config, lanes=lanes)
        self._config = with_balance(with_shares(self._config))
        return self._config

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able identity of the run: whatever changes which tokens come in which batch."""
        return _fingerprint(self.lane_config())

    def start(self) -> RunState:
        """The state iteration starts from."""
        if self._loaded is None:
            return RunState.begin(self.fingerprint(), self.topology)
        return self.resume(self._loaded)[1]

    def __getstate__(self) -> dict[str, Any]:
        refuse_resharding()  # here, because a spawned worker does not know who asked for it
        return self.__dict__

    def __iter__(self) -> DatasetIterator:
        refuse_resharding()
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        config = self.lane_config(workers)
        return DatasetIterator(config, self.start(), worker=worker, workers=workers)


def _fingerprint(config: LaneConfig) -> dict[str, Any]:
    preparation, source = config.preparation, config.source
    tokenizers = [tokenizer and tokenizer.fingerprint for tokenizer in preparation.tokenizers]
    described, mixed = source.describe(), isinstance(source, Mixture)
    if mixed:  # with its source, so that one may be added that brings another template
        for part, tokenizer in zip(described["sources"].values(), tokenizers, strict=True):
            part["tokenizer"] = tokenizer
    return {
        "source": described,
        "tokenizer": None if mixed else tokenizers[0],
        "eos": [preparation.eos, preparation.eos_id] if mixed or source.tokenized else None,
        "filter": preparation.filter.name if preparation.filter else None,
        "map": preparation.map.name if preparation.map else None,
        "order": config.order.describe() if config.order else None,
        "packer": config.packer.describe(),
        "balance": config.balance.describe() if config.balance else None,
        "window": config.window.describe(),
        "batch_tokens": config.batch_tokens,
        "seed": config.seed,
        "shuffle": config.shuffle,
        "lanes": config.lanes,
    }


def _choose_packer(
    seq_len: int | None, packer: Packer | None, order: DocumentOrder | None, source: Source
) -> Packer:
    if (seq_len is None) == (packer is None):
        raise ConfigError(
            f"seq_len is {seq_len!r} and packer is {packer!r}.",
            "The row length must come from one of them.",
            "Pass seq_len=2048, or packer=BestFitDecreasing(seq_len=2048).",
        )
    if packer is None and len({part.overflow for part in sources_of(source)}) > 1:
        raise ConfigError(
            "The mixture has conversations, which are dropped if they are longer than a row, and "
            "documents that are cut.",
            "One rule holds for all.",
            f'Pass packer=BestFitDecreasing(seq_len={seq_len}, overflow=...) with "split", '
            '"truncate" or "drop".',
        )
    if packer is None and order is None:
        return BestFitDecreasing(seq_len=seq_len or 0, overflow=source.overflow)
    if packer is None and source.overflow != "split":
        raise ConfigError(
            f"{type(order).__name__} goes with a packer that cuts documents where rows end.",
            f"The documents of {type(source).__name__} are not cut unless you say so.",
            f"Pass packer=Concat(seq_len={seq_len}) to have them cut, or leave out the order.",
        )
    if packer is None:
        return Concat(seq_len=seq_len or 0)
    if source.overflow != "split" and (packer.overflow == "split" or _cuts(packer)):
        logger.warning(
            "%s cuts conversations, and what is cut off is learnt without what was said before; "
            'BestFitDecreasing(seq_len=%d, overflow="drop") keeps them whole.',
            type(packer).__name__,
            packer.seq_lens[-1],
        )
    if order is not None and not _keeps_order(packer):
        raise ConfigError(
            f"{type(packer).__name__} puts documents into rows by their lengths.",
            f"What {type(order).__name__} puts side by side would be torn apart again.",
            f"Use packer=Concat(seq_len={packer.seq_lens[-1]}), or leave out the order.",
        )
    return packer


def _cuts(packer: Packer) -> bool:
    """True if documents that fit a row may be cut all the same."""
    return not isinstance(packer, BestFitDecreasing | FirstFitDecreasing | Pad)


def _keeps_order(packer: Packer) -> bool:
    """True if documents that arrive one behind the other mostly share a row.

    A packer may say so by its attribute `keeps_order`; of ours, `Concat` does unless it shuffles
    atoms smaller than a row.
    """
    atom = getattr(packer, "atom", None) or packer.seq_lens[-1]
    concat = isinstance(packer, Concat) and atom >= packer.seq_lens[-1]
    return bool(getattr(packer, "keeps_order", concat))


def _check_order(order: DocumentOrder | None) -> None:
    if order is not None and not isinstance(order, DocumentOrder):
        raise ConfigError(
            f"order is a {type(order).__name__}.",
            "Documents cannot be ordered with it.",
            "Use SimilarityOrder(), or an object with the attributes of `DocumentOrder`.",
        )


def _ordering_tokens(order: DocumentOrder | None) -> int:
    """Tokens that a lane holds for ordering, about: their number is not known before reading."""
    return 0 if order is None else order.order_window_documents * TOKENS_PER_DOCUMENT


def _check_batch_tokens(batch_tokens: int | None, packer: Packer) -> int:
    longest = packer.seq_lens[-1]
    if batch_tokens is None:
        return longest
    if not longest <= batch_tokens < 1 << 31 or batch_tokens % longest:
        raise ConfigError(
            f"batch_tokens is {batch_tokens}, a row has {longest} tokens.",
            "A batch is a whole number of rows, and its boundaries are numbers of 31 bits.",
            f"Use a multiple of {longest}.",
        )
    return batch_tokens


def _check_choices(attention: str, epochs: int | None, lanes: int | None) -> None:
    if attention not in ("document", "row"):
        raise ConfigError(
            f"attention is {attention!r}.",
            "It decides where attention segments end.",
            'Use "document" or "row".',
        )
    for name, value in (("epochs", epochs), ("lanes", lanes)):
        if value is not None and value < 1:
            raise ConfigError(
                f"{name} is {value}.",
                "There would be nothing to do.",
                f"Use a positive number, or None ({'endless' if name == 'epochs' else 'chosen'}).",
            )


def _prepare(
    source: Source,
    tokenizer: Any,
    eos: EosRule | None,
    eos_id: int | None,
    pad_id: int | None,
    vocab_size: int | None,
) -> tuple[Preparation, RowFormat]:
    """What tokenizer and ids mean for this kind of source; -1 stands for an unknown EOS id."""
    texts = any(not part.tokenized for part in sources_of(source))
    ids = any(part.tokenized for part in sources_of(source))
    if tokenizer is not None:
        given = {"eos": eos, "eos_id": eos_id, "pad_id": pad_id}
        if not texts:  # the tokenizer only lends its ids
            given["eos"] = None if isinstance(tokenizer, Tokenizer) else "as-is"
        tokenizer = load_tokenizer(
            tokenizer, **{name: value for name, value in given.items() if value is not None}
        )
        eos_id, pad_id = tokenizer.eos_id, tokenizer.pad_id
        vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
    elif texts:
        raise ConfigError(
            "The source gives texts, and there is no tokenizer.",
            "Only token ids can be packed.",
            "Pass tokenizer= (a path to tokenizer.json, or a tokenizers or transformers "
            "tokenizer).",
        )
    rule = eos or "as-is"
    if ids and rule != "as-is" and eos_id is None:
        raise ConfigError(
            f'eos is "{rule}", and the id is unknown.',
            "There is nothing to append.",
            "Pass eos_id=, or a tokenizer that declares it.",
        )
    preparation = Preparation(
        tokenizers=tuple(_for_source(tokenizer, part) for part in sources_of(source)),
        eos=rule,
        eos_id=eos_id,
        vocab_size=vocab_size,
    )
    return preparation, RowFormat(
        pad_id=0 if pad_id is None else pad_id, eos_id=-1 if eos_id is None else eos_id
    )


def _for_source(tokenizer: Any, source: Source) -> Tokenizer | ChatTokenizer | None:
    if source.tokenized:
        return None
    if isinstance(source, Chat):
        return ChatTokenizer(tokenizer, source.template, source.document_name)
    return cast(Tokenizer, tokenizer)
