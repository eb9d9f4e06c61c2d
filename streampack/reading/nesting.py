"""JSON with a limit on how deep it is nested, so that it is read the same wherever it is read.

Without one it depends on how deep the caller's stack is whether a record can be parsed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

#: Lists and objects in one another. Arrow allows as many in the schema of a Parquet file.
MOST_NESTED = 100


def parse_json(data: bytes) -> Any:
    """The value in `data`, UTF-8.

    Raises:
        ValueError: it is not JSON, or nested more than `MOST_NESTED` deep.
    """
    # Nearly all records have fewer brackets, and a look at every byte takes longer than counting.
    if data.count(b"[") + data.count(b"{") > MOST_NESTED:
        # Without pairs of backslashes, and then without escaped quotes, every other part is a text.
        parts = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = np.frombuffer(b"".join(parts[::2]), dtype=np.uint8)
        opened, closed = ((outside == a) | (outside == b) for a, b in (b"[{", b"]}"))
        depth = int(np.cumsum(opened.astype(np.int64) - closed).max())
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested {depth} deep, {MOST_NESTED} are allowed")
    return json.loads(data.decode())
