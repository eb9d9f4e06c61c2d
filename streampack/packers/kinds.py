"""The packers that the package exports, for code that handles each of them."""

from __future__ import annotations

import inspect
from typing import Any

from streampack import packing
from streampack.packing.packer import Packer


def packer_kinds() -> dict[str, type[Packer]]:
    """Return the packers of `streampack.packing` by name, in alphabetical order."""
    exported = (getattr(packing, name) for name in dir(packing))
    kinds = (each for each in exported if isinstance(each, type) and issubclass(each, Packer))
    return {kind.__name__: kind for kind in kinds if kind is not Packer}


def with_rows(kind: type[Packer], seq_len: int) -> Packer:
    """Return a packer of this kind with rows of `seq_len` tokens.

    A packer of several row lengths has rows of half and a quarter of that too.
    """
    arguments: dict[str, Any] = {"seq_len": seq_len}
    if "seq_len" not in inspect.signature(kind).parameters:
        shorter = (n for n in (seq_len // 4, seq_len // 2) if n > 1)
        arguments = {"seq_lens": (*shorter, seq_len)}
    return kind(**arguments)
