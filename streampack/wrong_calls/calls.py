"""wrong_call: the error for a call with unknown, missing or positional arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing, Buckets, Concat, Pad
from streampack.sources import Chat, Mixture, ReadOptions, Source, Storage
from streampack.sources import open as open_source
from streampack.sources.items import kind_name
from streampack.stages.token_rules import TokenRules
from streampack.window.config import WindowConfig
from streampack.wrong_calls.names import OF_BATCHES
from streampack.wrong_calls.words import OF_DATASETS, OF_LOADERS, OF_SOURCES

#: Objects that take an argument for the dataset, and the argument of the dataset with each.
_SETTINGS: tuple[tuple[Any, str], ...] = (
    (BestFitDecreasing, "packer=BestFitDecreasing(seq_len=..., {})"),
    (WindowConfig, "window=WindowConfig({})"),
    (TokenRules, "token_rules=TokenRules({})"),
    (Concat, "packer=Concat(seq_len=..., {})"),
    (Buckets, "packer=Buckets({})"),
    (Pad, "packer=Pad(seq_len=..., {})"),
)
#: Functions that take an argument for the source, and the call of each.
_READERS: tuple[tuple[Any, str], ...] = (
    (open_source, "sources.open(source, {})"),
    (Chat, "sources.Chat(source, {})"),
    (Mixture, "sources.Mixture({{name: source}}, {})"),
    (ReadOptions, "sources.open(source, reading=sources.ReadOptions({}))"),
    (Storage, "sources.open(source, storage=sources.Storage({}))"),
)


def wrong_call(
    name: str, taken: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TypeError:
    """Return the error for a call that does not fit the parameters.

    Args:
        name: name of the function or class.
        taken: its parameters.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
    """
    by_place = [arg.name for arg in taken if arg.kind is not arg.KEYWORD_ONLY]
    if len(args) > len(by_place):
        return _too_many(name, taken, by_place, args)
    names = [arg.name for arg in taken]
    passed = {*by_place[: len(args)], *kwargs}
    wrong = [
        f"has no argument {key!r}: {_hint(name, key, kwargs[key], names)}."
        for key in kwargs
        if key not in names
    ][:1]
    wrong += [
        f"needs {arg.name}." for arg in taken if arg.default is arg.empty and arg.name not in passed
    ]
    return TypeError(f"{name} {' It '.join(wrong)}")


def refused(source: Any, name: str, value: Any) -> ConfigError:
    """Return the error for an argument of `sources.open` that a source does not take."""
    if not isinstance(source, Source):
        fact = f"{kind_name(source)} does not accept {name}, got {name}={value!r:.80}."
        return ConfigError(fact, f"Leave {name} out.", setting=name)
    remedy = f"Leave it out, or pass {name}= to sources.{source._kind} in its place."
    if source._kind == "Mixture":
        remedy = f"Pass sources.Mixture({{name: sources.open(path, {name}={value!r:.80})}}, ...)."
    elif hasattr(source, "template"):
        remedy = "Leave it out: the fields of a record decide how it is read."
    return ConfigError(
        f"{name}={value!r:.80} is given, and the source is a {source._kind}, which has its own "
        "fields.",
        remedy,
        setting=name,
    )


def _too_many(
    name: str, taken: Sequence[inspect.Parameter], by_place: list[str], args: Sequence[Any]
) -> TypeError:
    value = args[len(by_place)]
    if name == "PackedLoader":  # the second argument of torch's DataLoader is the batch size
        return TypeError(
            f"PackedLoader takes one argument by position, got {value!r:.80} as well. Write "
            "PackedLoader(dataset), and give batch_size= to PackedDataset."
        )
    if name == "PackedBatch.to()":
        return TypeError(
            f"{name} takes a device only, got {value!r:.80} as well: {OF_BATCHES['dtype']}."
        )
    names = [arg.name for arg in taken]
    first = [f"{key}={value!r:.80}" for key in names[len(by_place) :][:1]]
    if name.startswith("PackedDataset"):
        first = [f"seq_len={value!r:.80}"]
    call = f"{name.removesuffix('()')}({', '.join([*by_place, *first])})"
    return TypeError(f"{name} takes its settings by name. Write {call}, for example.")


def _hint(name: str, key: str, value: Any, names: Sequence[str]) -> str:
    """Return the call to write for an unknown argument, or the arguments that exist."""
    kind = name.partition(".")[0]
    shown = repr(value) if isinstance(value, (int, float, str)) else "..."
    words: str | None = None
    if kind == "PackedDataset":
        words = OF_DATASETS.get(key) or _of_setting(key) or _of_loader(key) or _of_source(key)
    elif kind == "PackedLoader":
        words = OF_LOADERS.get(key) or _of_dataset(key)
    elif "tokens" in names or "text" in names or "template" in names:
        words = OF_SOURCES.get(key) or _of_dataset(key)
    elif kind == "PackedBatch":
        words = OF_BATCHES.get(key)
    if words is not None:
        return words.replace("{value}", f"{shown:.80}")
    similar = get_close_matches(key, names, 1)
    meant = f"{similar[0]}= may be meant; " if similar else ""
    return f"{meant}it takes {', '.join(names)}"


def _takes(function: Any, key: str) -> bool:
    # Before 3.11.4, `__new__` hides the constructor.
    called: Any = getattr(function, "__init__") if isinstance(function, type) else function  # noqa: B009
    return key in inspect.signature(called).parameters


def _of_setting(key: str) -> str | None:
    calls = (call for kind, call in _SETTINGS if _takes(kind, key))
    return next((f"pass {call.format(f'{key}=...')}" for call in calls), None)


def _of_loader(key: str) -> str | None:
    from streampack.loader import PackedLoader

    return f"pass PackedLoader(dataset, {key}=...)" if _takes(PackedLoader, key) else None


def _of_source(key: str) -> str | None:
    calls = (call for kind, call in _READERS if _takes(kind, key))
    named = (call.format(f"{key}=...") for call in calls)
    return next((f"pass PackedDataset({call}, seq_len=...)" for call in named), None)


def _of_dataset(key: str) -> str | None:
    from streampack.dataset import PackedDataset

    if _takes(PackedDataset, key):
        return f"pass PackedDataset(source, {key}=...)"
    return OF_DATASETS.get(key) or _of_setting(key)
