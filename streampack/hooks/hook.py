"""Hook: a user's function with a name, which identifies it in the fingerprint of a saved state."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, type_in_words
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError

HookFunction = Callable[[Documents, NDArray[np.uint64]], Any]
#: Function of a record, which returns another one, or None to leave it out.
RecordFunction = Callable[[dict[str, Any]], "dict[str, Any] | None"]

#: Arguments of the function of a setting, if they are not `_OF_BLOCKS`.
_TAKES = {"records": ("record",)}
_OF_BLOCKS = ("documents", "seeds")
_OF_RECORDS = "a function of one record, a dict, goes to sources.open(path, records=function)"
#: Advice for a function of other arguments.
_EXAMPLES = {
    "filter": f"Return a mask of the block, such as documents.lengths >= 64; {_OF_RECORDS}.",
    "map": f"Return the block with other tokens or offsets; {_OF_RECORDS}.",
    "records": "Pass a function of one record, a dict, that returns another, or None.",
}


@explained
@dataclass(frozen=True)
class Hook:
    """A named function on documents. Rename it if its behaviour changes: states store the name.

    Attributes:
        name: identifies the function in the fingerprint.
        function: called with `Documents` of N documents and (N,) uint64 seeds. A map returns
            `Documents` with the same origins in the same order (an empty document is dropped
            later, and counted); a filter returns an (N,) bool array, True to keep. It must be a
            pure function of each document and its seed, and not write to the arrays it is given.
            As ``records=`` of a source it is called with one record, a dict, and returns another.
            Worker processes started by spawn need it picklable.
    """

    name: str
    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(
                f"A hook's name must be a text that is not empty, got {self.name!r}.",
                'Give it a name, for example Hook("drop-short", function).',
                setting="name",
            )
        if not callable(self.function):
            raise ConfigError(
                f'The hook "{self.name}" must have a function, got {type_in_words(self.function)}.',
                "Pass a function (documents, seeds).",
                setting="function",
            )


def as_hook(setting: str, function: Any) -> Hook:
    """Wrap a function in a hook named by its module and qualified name.

    Raises:
        ConfigError: the function has no unique name, takes other arguments, or is not a function.
    """
    takes = _TAKES.get(setting, _OF_BLOCKS)
    hook = function if isinstance(function, Hook) else None
    called = function if hook is None else hook.function
    if callable(called) and not _accepts(called, len(takes)):
        raise ConfigError(
            f"{setting} must be a function ({', '.join(takes)}), got {called!r:.80}, which takes "
            "other arguments.",
            _EXAMPLES[setting],
            setting=setting,
        )
    if hook is not None:
        return hook
    name = getattr(function, "__qualname__", "<lambda>")
    if not callable(function) or name.endswith("<lambda>"):
        raise ConfigError(
            f"{setting} must be a named function, got {function!r:.80}.",
            f'Pass a function ({", ".join(takes)}), or {setting}=Hook("a-name", function).',
            setting=setting,
        )
    return Hook(f"{getattr(function, '__module__', 'builtins')}.{name}", function)


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function may be called with `count` values by position."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
