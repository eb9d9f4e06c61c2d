"""JSON with a limit on how deep it is nested, so that it is read the same wherever it is read.

Without one it depends on how deep the caller's stack is whether a record can be parsed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

#: Lists and objects in one another. Arrow allows as many in the schema of a Parquet file.
MOST_NESTED = 100


def parse_json(data: bytes) -> Any:
    """The value in `data`, UTF-8.

    Raises:
        ValueError: it is not JSON, or nested more than `MOST_NESTED` deep.
    """
    # Nearly all records have fewer brackets, and a look at every byte takes longer than counting.
    if data.count(b"[") + data.count(b"{") > MOST_NESTED:
        depth = _depth(np.frombuffer(data, dtype=np.uint8))
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested {depth} deep, {MOST_NESTED} are allowed")
    return json.loads(data.decode())


@kernel
def _depth(data: NDArray[np.uint8]) -> int:
    """How deep the lists and objects of JSON are nested, brackets in texts left out."""
    deepest = depth = 0
    in_text = escaped = False
    for byte in data:
        if in_text:
            if escaped:
                escaped = False
            elif byte == 92:  # a backslash
                escaped = True
            elif byte == 34:  # a quote
                in_text = False
        elif byte == 34:
            in_text = True
        elif byte == 91 or byte == 123:
            depth += 1
            deepest = max(deepest, depth)
        elif byte == 93 or byte == 125:
            depth -= 1
    return deepest
