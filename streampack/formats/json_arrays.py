"""Read a file that is one JSON array as lines, one element each, at the same offsets.

Bytes between the elements become line ends, and line ends inside of elements become spaces, so that
a line begins at the byte at which its element begins in the file. Elements are not parsed here: the
reader of the lines does that, and names a broken one by its offset. Quotes, escapes and brackets
are enough to know where an element ends; a byte that cannot be part of JSON at its place is damage,
so that a lost quote does not turn the rest of the file inside out.

Memory is bounded by a chunk. The cost is a dozen passes of numpy over each chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.storage.decompression import Chunk, DamagedError

_BLANKS = b" \t\r\n"
_LINE_END, _SPACE = b"\n "
#: Bytes of JSON outside of strings: brackets, numbers, and the letters of its words and of NaN.
_OUTSIDE = _BLANKS + b'[]{}:,"0123456789+-.eEtruefalsnINity'
#: Bits of a byte's class; the last two tell where it cannot be part of JSON.
_QUOTE, _BACKSLASH, _BRACKET, _BETWEEN, _BREAK, _NOT_OUTSIDE, _NOT_INSIDE = 1, 2, 4, 8, 16, 32, 64
_BYTES = {
    _QUOTE: b'"',
    _BACKSLASH: b"\\",
    _BRACKET: b"[]{}",
    _BETWEEN: _BLANKS + b",",
    _BREAK: b"\n",
    _NOT_OUTSIDE: bytes({*range(256)} - {*_OUTSIDE}),
    _NOT_INSIDE: bytes(range(32)),
}
_CLASSES = bytes(sum(bit for bit, each in _BYTES.items() if byte in each) for byte in range(256))
_STEPS = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}
_DEPTH = np.array([_STEPS.get(byte, 0) for byte in range(256)], dtype=np.int64)


def is_array(head: bytes) -> bool:
    """Return True if the first character of a JSON text is "["."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANKS)[:1] == b"["


def as_lines(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield chunks of an array's text as lines, each of the size of its original.

    Args:
        chunks: the text of the file, with its offsets; the last one is empty.

    Raises:
        DamagedError: after the last byte before the damage.
    """
    array = _Array()
    for position, chunk in chunks:
        if not len(chunk) and not array.is_closed:
            raise DamagedError("its JSON array breaks off")
        lines, damage = array.lines(np.frombuffer(chunk, dtype=np.uint8))
        if len(lines) or not len(chunk):
            yield position, lines.data if len(lines) else b""
        if damage is not None:
            raise damage


class _Array:
    """The state of the text between two chunks."""

    def __init__(self) -> None:
        self._begun = self._inside = self._escaped = self.is_closed = False
        self._depth = 0
        self._offset = 0

    def lines(self, text: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], DamagedError | None]:
        """Return the lines of the next chunk, up to the damage in it."""
        lines = np.full(len(text), _LINE_END, dtype=np.uint8)
        begin = 0
        if not self._begun:
            begin = text.tobytes().find(b"[") + 1  # the file begins with it, apart from blanks
            self._begun, self._depth = begin > 0, min(begin, 1)
        end, damage = len(text), None
        if not self.is_closed and self._begun:
            end = begin + self._elements(text[begin:], lines[begin:])
            if end < len(text) and not self.is_closed:
                damage = DamagedError(f"its JSON is damaged at byte {self._offset + end}")
        rest = text[end:].tobytes()
        if self.is_closed and (more := rest.lstrip(_BLANKS)):
            end += len(rest) - len(more)
            damage = DamagedError(
                f"its JSON array is followed by more at byte {self._offset + end}"
            )
        elif self.is_closed:
            end = len(text)
        self._offset += len(text)
        return lines[:end], damage

    def _elements(self, text: NDArray[np.uint8], lines: NDArray[np.uint8]) -> int:
        """Fill in the lines up to the array's end or the damage; return the bytes up to there."""
        if not len(text):
            return 0
        kinds = np.frombuffer(text.tobytes().translate(_CLASSES), dtype=np.uint8)
        inside = _held(self._quotes(kinds), len(text), self._inside)
        wrong = _positions(kinds & (_NOT_OUTSIDE + inside * np.uint8(_NOT_INSIDE - _NOT_OUTSIDE)))
        kinds = kinds * ~inside
        brackets = _positions(kinds & _BRACKET)
        depth = np.cumsum(_DEPTH[text[brackets]]) + self._depth
        closed = brackets[depth == 0]
        stop = min(int(ends[0]) if len(ends) else len(text) for ends in (closed, wrong))
        is_top = np.append(self._depth, depth) == 1
        top = np.repeat(is_top, np.diff(brackets, prepend=0, append=len(text)))
        lines[:stop] = text[:stop]
        lines[:stop][_positions(kinds[:stop] & _BREAK)] = _SPACE
        lines[:stop][_positions((kinds * top)[:stop] & _BETWEEN)] = _LINE_END
        self._inside = bool(inside[-1])
        self._depth = int(depth[-1]) if len(depth) else self._depth
        if len(closed) and stop == closed[0]:
            self.is_closed = True
            return stop + 1
        return stop

    def _quotes(self, kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the indices of the quotes that begin or end a string, among classes of bytes."""
        quotes = _positions(kinds & _QUOTE)
        positions = _positions(kinds & _BACKSLASH)
        was_escaped, self._escaped = self._escaped, False
        if was_escaped and len(quotes) and quotes[0] == 0:
            quotes = quotes[1:]
        if not len(positions):
            return quotes
        # Of a run of backslashes, every second one escapes the byte behind it.
        begins = np.append(True, np.diff(positions) > 1)
        first = positions[begins][np.cumsum(begins) - 1]
        escaping = positions[(positions - first - ((first == 0) & was_escaped)) % 2 == 0]
        self._escaped = bool(len(escaping) and escaping[-1] == len(kinds) - 1)
        return np.setdiff1d(quotes, escaping + 1, assume_unique=True)


def _positions(kinds: NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices of values other than 0; `flatnonzero` is six times slower on bytes."""
    positions: NDArray[np.int64] = (kinds != 0).nonzero()[0]
    return positions


def _held(changes: NDArray[np.int64], size: int, first: bool) -> NDArray[np.bool_]:
    """Return (size,) booleans that change at each of the given indices, from `first` on."""
    values = (np.arange(len(changes) + 1) % 2 == 1) ^ first
    return np.repeat(values, np.diff(changes, prepend=0, append=size))
