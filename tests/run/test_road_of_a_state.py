"""A plain resume hands the saved state to few functions: to follow a state, one reads these."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import streampack
from streampack import PackedDataset, PackedLoader

PACKAGE = str(Path(streampack.__file__).parent)
MOST_FUNCTIONS = 15


class Saved(dict[str, Any]):
    """A state, or a part of it, which copies of it remain."""


def marked(value: Any, name: str = "") -> Any:
    """Return a state with its mappings as `Saved`; not a cursor, from which any run reads on."""
    if isinstance(value, dict) and name != "cursor":
        return Saved({name: marked(part, name) for name, part in value.items()})
    return value


def is_saved(value: Any) -> bool:
    """Return True for a state, a part of it, or a container with one."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(part, Saved) for part in value)
    if isinstance(value, dict):
        return isinstance(value, Saved) or any(isinstance(part, Saved) for part in value.values())
    return False


@contextmanager
def functions_with_a_state() -> Iterator[set[str]]:
    """The functions of the package that get a state or a part of it, as they are called."""
    functions: set[str] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(is_saved(frame.f_locals[name]) for name in names if name in frame.f_locals):
                file = code.co_filename.removeprefix(PACKAGE)
                functions.add(f"{file}:{code.co_firstlineno} {code.co_name}")

    sys.setprofile(called)
    try:
        yield functions
    finally:
        sys.setprofile(None)


def loader() -> PackedLoader[Any]:
    documents = [[1 + i % 50, 2, 3] * (1 + i % 7) for i in range(400)]
    return PackedLoader(PackedDataset(documents, seq_len=16, batch_size=2, lanes=2))


def test_a_plain_resume_hands_the_state_to_few_functions() -> None:
    first = loader()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = marked(json.loads(json.dumps(first.state_dict())))
    resumed = loader()
    with functions_with_a_state() as functions:
        resumed.load_state_dict(state)
        following = next(iter(resumed))
    assert following.input_ids.equal(next(batches).input_ids)
    # Its beginning and its end show that the whole road was followed.
    assert {"load_state_dict", "again"} <= {name.split()[1] for name in functions}
    assert len(functions) <= MOST_FUNCTIONS, sorted(functions)
