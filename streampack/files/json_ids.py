"""Token ids of JSON records, parsed by a kernel, in a fraction of the standard library's time.

The list of ids is cut out of a record's text, and a mark takes its place, so that the standard
library parses all other values, and finds all faults. If the field does not have the mark then, as
the list was another one's, or if it is not a list of ids, the whole text is parsed as it is.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.files.json_records import record_of
from streampack.sources.records import BrokenDocumentError

_MARK = f"ids {secrets.token_hex(16)}"  # of this process, so that no record has it
_QUOTED_MARK = f'"{_MARK}"'.encode()
_COMMA, _CLOSE, _ZERO, _NINE, _SPACE = b",]09 "
_MOST_DIGITS, _LARGEST = 10, 0xFFFFFFFF


def record_with_ids(data: bytes, field: str) -> dict[str, Any]:
    """Parse the JSON object in `data`, with the ids of a field as an array (T,) uint32 if possible.

    Raises:
        BrokenDocumentError: as for `record_of`.
    """
    key = f'"{field}"'.encode()
    at = data.find(key) + len(key)
    begin = data.find(b"[", at) + 1
    if at < len(key) or data[at:begin].split() not in ([b":["], [b":", b"["]):
        return record_of(data)
    ids = np.empty((len(data) - begin) // 2 + 1, dtype=np.uint32)
    count, end = parse_ids(np.frombuffer(data, dtype=np.uint8), begin, ids)
    if count:
        try:
            record = record_of(data[: begin - 1] + _QUOTED_MARK + data[end:])
        except BrokenDocumentError:
            return record_of(data)
        if record.get(field) == _MARK:
            record[field] = ids[:count].copy()
            return record
    return record_of(data)


@kernel_of(lambda data, begin, _: data.size - begin)
def parse_ids(data: NDArray[np.uint8], begin: int, ids: NDArray[np.uint32]) -> tuple[int, int]:
    """Parse a list of ids in JSON.

    Args:
        data: (B,) the text.
        begin: the byte behind the list's bracket.
        ids: receives the ids; it has room for (B - begin) // 2 + 1.

    Returns:
        The number of ids, and the byte behind the list. It is 0 for another or an empty list.
    """
    size, at, count = len(data), begin, 0
    while at < size:
        while at < size and data[at] == _SPACE:
            at += 1
        first, number = at, np.int64(0)
        while at < size and _ZERO <= data[at] <= _NINE:
            number = 10 * number + data[at] - _ZERO
            at += 1
        digits = at - first
        while at < size and data[at] == _SPACE:
            at += 1
        is_id = 0 < digits <= _MOST_DIGITS and number <= _LARGEST
        if not is_id or (digits > 1 and data[first] == _ZERO) or at == size:
            break
        ids[count] = number
        count += 1
        at += 1
        if data[at - 1] != _COMMA:
            return (count, at) if data[at - 1] == _CLOSE else (0, 0)
    return 0, 0
