"""Properties of byte-level BPE: its split patterns, and the lengths of its tokens in bytes.

The tokens of a text concatenate to its bytes, so a token's offset is the sum of the lengths before
it, and engines need not track offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Engine

Span = tuple[int, int]

#: Split pattern of GPT-2 (https://github.com/openai/gpt-2), which a tokenizer.json implies.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
#: A variant that keeps white space other than " " with the text after it. It gives other tokens
#: only where a token of the vocabulary joins the two (`joined_white_space`), and is twice as fast
#: because it has no lookahead.
GPT2_JOINED = r"[^\S ]?'(?:[sdmt]|ll|ve|re)|\s?\p{L}+|\s?\p{N}+|\s?[^\s\p{L}\p{N}]+"

_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = iter(range(256, 512))
#: Letter that encodes each byte: the byte's own if it is printable, else one from 256 on.
LETTERS = [chr(byte if byte in _SEEN else next(_OTHERS)) for byte in range(256)]
_BYTE_OF = {letter: byte for byte, letter in enumerate(LETTERS)}

_WHITE = [
    *"\t\n\x0b\x0c\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000",
    *map(chr, range(0x2000, 0x200B)),
]


def patterns(described: Mapping[str, Any]) -> list[str] | None:
    """Return the patterns that split a text before BPE; None unless it is plain byte-level BPE.

    Args:
        described: content of a tokenizer.json. Added tokens are ignored; see `added_tokens`.
    """
    model, normalizers = described["model"], _steps(described["normalizer"], "normalizers")
    plain = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if (
        model["type"] != "BPE"
        or any(model.get(name) for name in (*plain, "dropout", "fuse_unk"))
        or any(step["type"] != "NFC" for step in normalizers)
    ):
        return None
    steps = _steps(described["pre_tokenizer"], "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    *splits, last = steps
    expressions = []
    for step in splits:
        known = step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
        if not known or "Regex" not in step["pattern"]:
            return None
        expressions.append(step["pattern"]["Regex"])
    return [*expressions, GPT2] if last.get("use_regex", True) else expressions


def _steps(described: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's part, which may be missing, a single one or a sequence."""
    if described is None:
        return []
    return described[name] if described["type"] == "Sequence" else [described]


def joined_white_space(vocabulary: Mapping[str, int]) -> set[str]:
    """Return white-space characters other than " " that a token joins to non-space text."""
    ends: dict[bytes, set[str]] = {}
    for character in _WHITE:
        whole = character.encode()
        for start in range(len(whole)):
            ends.setdefault(whole[start:], set()).add(character)
    joined: set[str] = set()
    for token in vocabulary:
        if not all(letter in _BYTE_OF for letter in token[:4]):
            continue  # skips added tokens
        head = bytes(_BYTE_OF[letter] for letter in token[:4])
        for cut in range(1, len(head)):
            whole_before = head[:cut] in ends and head[cut] & 0xC0 != 0x80
            if whole_before and not _bytes_of(token)[cut:].decode(errors="replace").isspace():
                joined |= ends[head[:cut]]
    return joined


def _bytes_of(token: str) -> bytes:
    return bytes(_BYTE_OF[letter] for letter in token)


class TokenPlaces:
    """Positions of a text's tokens, from their lengths in bytes.

    Args:
        engine: a tokenizer for which `patterns` does not return None.
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
        self, text: str, ids: Sequence[int], spans: Sequence[Span]
    ) -> NDArray[np.bool_] | None:
        """Return an (N,) bool mask of the tokens that contain characters of `spans`.

        Args:
            text: the encoded text, after normalization.
            ids: (N,) ids of its tokens, without added ones.
            spans: (start, stop) in characters of the text.

        Returns:
            The mask, or None if the lengths of the tokens do not add up to the text's.
        """
        stops = self._lengths[np.asarray(ids, dtype=np.int64)].cumsum()
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
