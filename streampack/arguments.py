"""Arguments: what counts as a number or a word, and what to write in place of a wrong one."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from streampack.errors import ConfigError

Init = TypeVar("Init", bound=Callable[..., None])

_WHOLE = "its batches are whole already, so leave it out"
_ROWS = "batch_rows= of PackedDataset is the number of rows in a batch"
_LENGTH = "seq_len= of PackedDataset is the length of a row, in tokens"
_RULES = "pass token_rules=TokenRules({}=...) to PackedDataset"
_PREFETCH = "prefetch_batches= of PackedLoader is the number of batches made ahead"

#: By the names that torch, transformers, TRL and readers of shards use.
INSTEAD = {
    "batch_size": _ROWS,
    "per_device_train_batch_size": _ROWS,
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "block_size"), _LENGTH),
    **dict.fromkeys(("packing", "packing_strategy"), "it always packs; packer= says how"),
    **dict.fromkeys(("collate_fn", "drop_last", "sampler", "batch_sampler"), _WHOLE),
    **dict.fromkeys(("num_workers", "pin_memory", "timeout_s"), "PackedLoader takes it"),
    **dict.fromkeys(
        ("overflow", "align", "seq_lens"), "the packer takes it, packer=BestFitDecreasing(...)"
    ),
    "prefetch_factor": _PREFETCH,
    "persistent_workers": "workers go on from pass to pass by themselves, so leave it out",
    "num_train_epochs": "epochs= of PackedDataset is the number of passes",
    "dataset_text_field": 'sources.open(data, text="name") names the field with the texts',
    "chat_template": "sources.Chat(data, template=) takes it",
    "processing_class": "tokenizer= of PackedDataset takes it",
    **{name: _RULES.format(name) for name in ("eos", "eos_id", "bos", "pad_id", "vocab_size")},
    **dict.fromkeys(("shuffle", "seed", "seq_len", "tokenizer"), "PackedDataset takes it"),
    **dict.fromkeys(("field", "text_field"), "text= or tokens= names the field or column"),
    **dict.fromkeys(("remote", "urls", "data_files"), "paths, its first argument, names the files"),
    "local": "storage=Storage(cache_dir=...) says where copies of remote files lie",
}
#: What arguments without a default are, by their names.
NEEDED = {
    "paths": "a file, folder, URL or pattern, or a list of them",
    "sources": 'a dict of them by name, Mixture({"web": ..., "code": ...}, weights={...})',
}


def is_number(value: object) -> bool:
    """True for what a float can hold of integers, floats and fractions, numpy's too.

    Not for True and False.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: object) -> bool:
    """True for integers, numpy's too; not for True and False, nor for 2.0."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(
    name: str,
    value: Any,
    consequence: str,
    *,
    least: int | None = 1,
    most: int | None = None,
    otherwise: str = "",
) -> int:
    """`value` as a plain int, which JSON and pickle take (numpy's integers they may not).

    Args:
        name: of the setting.
        consequence: why other values cannot work, a sentence.
        least, most: bounds, both included; None is no bound.
        otherwise: what else may be passed, as in "or None (endless)".

    Raises:
        ConfigError: it is no whole number within the bounds.
    """
    if is_whole(value) and (least is None or least <= value) and (most is None or value <= most):
        return int(value)
    raise _refusal(name, value, consequence, f"a whole number{_bounds(least, most)}", otherwise)


def real_number(
    name: str,
    value: Any,
    consequence: str,
    *,
    least: float,
    most: float | None = None,
    otherwise: str = "",
) -> float:
    """`value` as a plain float, or int if it is one; see `whole_number`.

    Raises:
        ConfigError: it is no finite number within the bounds.
    """
    if is_number(value) and least <= value < math.inf and (most is None or value <= most):
        return int(value) if is_whole(value) else float(value)
    raise _refusal(name, value, consequence, f"a number{_bounds(least, most)}", otherwise)


def one_of(name: str, value: Any, known: Sequence[str], consequence: str) -> None:
    """Raise `ConfigError` unless the setting `name` is one of the words that are known."""
    if not isinstance(value, str) or value not in known:
        remedy = f"Use one of {', '.join(map(repr, known))}."
        raise ConfigError(f"{name} is {value!r:.80}.", consequence, remedy)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"


def _refusal(name: str, value: Any, consequence: str, kind: str, otherwise: str) -> ConfigError:
    remedy = f"Pass {kind}{', ' + otherwise if otherwise else ''}."
    return ConfigError(f"{name} is {value!r}.", consequence, remedy)


def explained(init: Init) -> Init:
    """The same constructor, whose `TypeError` for a wrong argument says what to write."""
    known = [*inspect.signature(init).parameters.values()][1:]
    names = [one.name for one in known]
    by_place = [one.name for one in known if one.kind is not one.KEYWORD_ONLY]
    needed = [one.name for one in known if one.default is one.empty]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {*by_place[: len(args)], *kwargs}
        wrong = [
            f"has no argument {name!r}: {INSTEAD.get(name) or _others(name, names)}."
            for name in kwargs
            if name not in names
        ][:1]
        wrong += [
            f"needs {name}{f': {NEEDED[name]}' if name in NEEDED else ''}."
            for name in needed
            if name not in given
        ]
        if wrong:
            raise TypeError(f"{type(self).__name__} {' It '.join(wrong)}")
        refuse_positions(type(self).__name__, init, args)
        init(self, *args, **kwargs)

    return cast(Init, checked)


def _others(name: str, names: list[str]) -> str:
    meant = difflib.get_close_matches(name, names, 1)
    return f"{meant[0]}= is meant, perhaps" if meant else f"it takes {', '.join(names)}"


def refuse_positions(name: str, init: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Raise `TypeError` if there are more arguments by position than a constructor takes.

    Args:
        name: of the class.
        init: its constructor, whose other arguments are by name only.
        args: those by position, without `self`.
    """
    known = list(inspect.signature(init).parameters.values())[1:]
    kinds = [parameter.kind for parameter in known]
    by_position = [kind for kind in kinds if kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(args) <= len(by_position) or inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    given = [parameter.name for parameter in known[: len(by_position)]]
    named = known[len(by_position)].name if len(by_position) < len(known) else None
    call = ", ".join([*given, *([] if named is None else [f"{named}={args[len(given)]!r:.80}"])])
    raise TypeError(f"{name} takes its settings by name. Write {name}({call}), for example.")
