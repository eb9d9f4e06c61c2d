"""Objects that a user's code makes, named on the command line as FILE.py:NAME or MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.sources.infer import as_source
from streampack.sources.infer import open as open_source


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
            runpy.run_path(place, run_name="replayed")
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


def corpus_of(source: str, tokenizer: str | None, **given: Any) -> tuple[Source, Any]:
    """The source that a command is about, and the tokenizer of its texts.

    Args:
        source: a path, or the name of a source or a `PackedDataset` that the user's code makes:
            so commands read conversations, mixtures and whatever else a line of Python can name.
        tokenizer: as given; None takes that of a `PackedDataset`.
        given: arguments of `sources.open`.
    """
    if "://" in source or os.path.exists(source) or not re.fullmatch(r"[^:]+:[A-Za-z_]\w*", source):
        return open_source(source, **given), tokenizer
    made = object_at(source)
    if (plan := getattr(made, "plan", None)) is None:
        return as_source(made, **given), tokenizer
    own = plan.config.preparation.any_tokenizer
    return plan.config.source, own if tokenizer is None else tokenizer
