"""Text keys: integers that stand for texts, such as names of repositories, as document fields.

A key is the first 63 bits of the BLAKE2b digest of the text in UTF-8, so it is the same on every
machine and in every run, and not negative. Different texts have the same key with a probability of
about 1e-19 per pair, or 5e-6 among ten million texts. If this happens, it is an error and never a
silent mixture: each process compares texts of equal keys, among its last `MOST_TEXTS` texts.

Cost: a block of Arrow is encoded as a dictionary, and each of its different texts takes about two
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.keep_last import KeepLast

#: Different texts that a process remembers, the latest ones, to detect equal keys.
MOST_TEXTS = 1 << 18

_texts: KeepLast[int, bytes] = KeepLast(MOST_TEXTS)


def text_key(text: str | bytes) -> int:
    """Return the key of a text, an integer of 63 bits.

    >>> text_key("pytorch/pytorch")
    2102391838652830778

    Args:
        text: a text, or its bytes in UTF-8.

    Raises:
        ConfigError: another text has the same key.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    key = _digest(data)
    before = _texts.keep(key, lambda: data)
    if before != data:
        names = " and ".join(repr(each.decode(errors="replace"))[:100] for each in (before, data))
        raise ConfigError(
            f"Texts of a field must have different keys, got {key} for both {names}.",
            "Change one of the texts in the corpus, or declare an integer field instead.",
            setting="document_fields",
        )
    return key


def text_of_key(key: int) -> str:
    """Return the text of a key that this process made among its last `MOST_TEXTS` texts."""
    return _texts[key].decode(errors="surrogatepass")


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 1


class TextKeys:
    """Conversion of the texts of a document field to their keys.

    Attributes:
        optional: True for a conversion that accepts any value of a record, or none.
    """

    optional = False

    def __call__(self, text: str) -> int:
        """Return the key of a text; see `text_key`."""
        return text_key(text)

    def of_texts(self, texts: Sequence[str | bytes]) -> NDArray[np.int64]:
        """Return the keys (N,) int64 of N texts."""
        keys = {text: text_key(text) for text in dict.fromkeys(texts)}
        return np.fromiter(map(keys.__getitem__, texts), dtype=np.int64, count=len(texts))

    def of_column(self, column: Any) -> NDArray[np.int64]:
        """Return the keys (N,) int64 of an Arrow array of strings; of nulls, any integer."""
        if str(column.type) in ("null", "string_view"):
            column = column.cast("large_string")
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        # Bytes, because not all files of strings hold UTF-8. The last one stands for nulls.
        texts = [*encoded.dictionary.cast("large_binary").to_pylist(), b""]
        index = encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
        used, position = np.unique(index, return_inverse=True)
        return self.of_texts([texts[i] or b"" for i in used.tolist()])[position]


TEXT_KEYS = TextKeys()
