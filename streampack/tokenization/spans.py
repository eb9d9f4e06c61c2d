"""Loss masks of tokens from spans of characters.

The tokens of a byte-level BPE concatenate to the bytes of a text, so a token's offset is the sum of
the lengths before it, and the engine need not track offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Engine

Span = tuple[int, int]


def mask_of(encoding: Encoding, spans: Sequence[Span], length: int) -> NDArray[np.bool_]:
    """Return a mask of the tokens of a text, `length` characters long, that overlap `spans`."""
    mask = np.zeros(len(encoding), dtype=np.bool_)
    for start, stop in spans:
        first, last = _tokens_of(encoding, start, stop, length)
        mask[first:last] = True
    return mask


def _tokens_of(encoding: Encoding, start: int, stop: int, length: int) -> tuple[int, int]:
    """Return the first and the end token that overlap text[start:stop]."""
    first = None
    while first is None and start < stop:  # a tokenizer may drop characters
        first = encoding.char_to_token(start)
        start += 1
    if first is None:
        return 0, 0
    last = None
    while last is None and stop < length:
        last = encoding.char_to_token(stop)
        stop += 1
    if last is None:
        return first, len(encoding.ids)
    begin, _ = encoding.token_to_chars(last)
    return first, last + (begin < stop - 1)


class TokenPlaces:
    """Positions of a text's tokens, from their lengths in bytes.

    Args:
        engine: a tokenizer for which `known_patterns` does not return None.
    """

    def __init__(self, engine: Engine) -> None:
        vocabulary = engine.get_vocab(with_added_tokens=False)
        added = engine.get_added_tokens_decoder()
        self._lengths = np.zeros(max([*vocabulary.values(), *added], default=-1) + 1, np.int64)
        for token, number in vocabulary.items():
            self._lengths[number] = len(token)
        for number, special in added.items():
            self._lengths[number] = len(special.content.encode())

    def mask(
        self, text: str, ids: NDArray[np.uint32], spans: Sequence[Span]
    ) -> NDArray[np.bool_] | None:
        """Return an (N,) bool mask of the tokens that contain characters of `spans`.

        Args:
            text: the encoded text, after normalization.
            ids: (N,) ids of its tokens, without added ones.
            spans: (start, stop) in characters of the text.

        Returns:
            The mask, or None if the lengths of the tokens do not add up to the text's.
        """
        stops = self._lengths[ids].cumsum()
        size = len(text.encode())
        if size != (stops[-1] if len(stops) else 0):
            return None
        places = np.array(spans, dtype=np.int64).reshape(-1, 2).clip(0, len(text))
        if size != len(text):
            points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
            bytes_each = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
            places = np.concatenate(([0], bytes_each.cumsum()))[places]
        starts = np.concatenate(([0], stops[:-1]))
        first, last = stops.searchsorted(places[:, 0], "right"), starts.searchsorted(places[:, 1])
        mask = np.zeros(len(stops), dtype=np.bool_)
        for begin, end in np.stack([first, last], axis=1)[places[:, 0] < places[:, 1]].tolist():
            mask[begin:end] = True
        return mask
