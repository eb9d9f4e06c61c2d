"""no_name: the error for a name that `streampack` lacks, with the import to write."""

from __future__ import annotations

import dis
import sys
from difflib import get_close_matches

import streampack
from streampack import ordering, packing, sources

_ROOMS = (streampack, sources, packing, ordering, streampack.trainers)


def no_name(name: str) -> Exception:
    """Return the error for the caller's caller, which asks for a name of `streampack`.

    It is an ImportError in ``from streampack import ...``, which replaces the text of any
    AttributeError.
    """
    known = {each: room.__name__ for room in reversed(_ROOMS) for each in room.__all__}
    similar = name if name in known else next(iter(get_close_matches(name, known, 1)), None)
    if similar is None:
        advice = "dir(streampack), dir(streampack.sources) and dir(streampack.packing) list names"
    else:
        advice = f"write from {known[similar]} import {similar}"
    text = f"streampack has no name {name!r}: {advice}."
    frame = sys._getframe(2)
    if frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]:
        return ImportError(text, name=name)
    return AttributeError(text, name=name, obj=streampack)
