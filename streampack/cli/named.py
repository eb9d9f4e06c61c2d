"""What a command is about: files, or what a user's code makes, named as FILE.py:NAME."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing, Packer
from streampack.sources.infer import as_source
from streampack.sources.infer import open as open_source

if TYPE_CHECKING:
    from streampack.dataset import PackedDataset


def object_at(named: str) -> Any:
    """What a user's code has under a name, or what the function of that name returns.

    Raises:
        ConfigError: there is no such file, module or name.
    """
    place, _, name = named.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f'"{named}" names no object.',
            "It does not say what of which file is wanted.",
            "Pass FILE.py:NAME or MODULE:NAME.",
        )
    sys.path.insert(0, str(Path(place).parent if place.endswith(".py") else Path.cwd()))
    try:
        found = (
            runpy.run_path(place, run_name=Path(place).stem)
            if place.endswith(".py")
            else vars(importlib.import_module(place))
        )
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"{place} cannot be loaded: {error}.",
            f'"{name}" would be made there.',
            "Name a file that exists, or a module that can be imported from here.",
        ) from error
    if name not in found:
        raise ConfigError(
            f'{place} has no "{name}".',
            "There is nothing to read.",
            "Name an object or a function at the top of that file.",
        )
    made = found[name]
    return made() if callable(made) and not isinstance(made, type) else made


def dataset_of(
    source: str, tokenizer: str | None, eos_id: int | None, seq_len: int | None, **given: Any
) -> PackedDataset:
    """The `PackedDataset` that a command is about: the user's, or one of the source that is named.

    Args:
        source: a path, or the name of a source or a `PackedDataset` that the user's code makes:
            so commands read conversations, mixtures and whatever else a line of Python can name.
        tokenizer: for a source.
        eos_id: with a tokenizer the one that it adds, and else that of a flat file of ids.
        seq_len: tokens per row; None is 2048, or what the user's dataset has.
        given: arguments of `sources.open`, for a source.

    Raises:
        ConfigError: there is no such thing, or it is text without a tokenizer.
    """
    given["eos_id"] = None if tokenizer is not None else eos_id
    path = "://" in source or os.path.exists(source)
    path = path or not re.fullmatch(r"[^:]+:[A-Za-z_]\w*", source)
    made = open_source(source, **given) if path else object_at(source)
    from streampack.dataset import PackedDataset  # imports torch: wrong names need not wait
    from streampack.job.topology import Topology
    from streampack.tokenization import TokenRules

    if isinstance(made, PackedDataset):
        if tokenizer is not None or any(value is not None for value in given.values()):
            raise ConfigError(
                f"{source} is a PackedDataset, and options say how documents are read.",
                "It says so itself.",
                "Leave out --tokenizer, --eos-id and the names of fields, or name its source.",
            )
        if seq_len is None:
            return made
        return packed_by(
            made, BestFitDecreasing(seq_len=seq_len, overflow=made.plan.config.source.overflow)
        )
    corpus = made if path else as_source(made, **given)
    corpus.prepare()
    if tokenizer is None and not corpus.tokenized:
        raise ConfigError(
            "The documents are read as text, and there is no tokenizer.",
            "Lengths are counted in tokens.",
            "Pass --tokenizer PATH; or --tokens NAME, if a field or column holds token ids.",
        )
    rules = TokenRules(eos_id=eos_id) if tokenizer is not None else None
    return PackedDataset(
        corpus, seq_len=seq_len or 2048, tokenizer=tokenizer, token_rules=rules, topology=Topology()
    )


def packed_by(
    dataset: PackedDataset, packer: Packer, batch_size: int | None = None, **others: Any
) -> PackedDataset:
    """The documents of a dataset, packed by another packer, or in other batches."""
    from streampack.window.config import WindowConfig

    config = dataset.plan.config
    rows = batch_size or config.batch_tokens // config.packer.seq_lens[-1]
    batch_tokens = rows * packer.seq_lens[-1]
    if (packer, batch_tokens) == (config.packer, config.batch_tokens):
        return dataset.alone(**others)
    return dataset.alone(
        packer=packer,
        batch_tokens=batch_tokens,
        window=WindowConfig().resolve(packer, batch_tokens),
        **{"order": None, "balance": None, **others},
    )
