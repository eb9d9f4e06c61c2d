"""Words of texts: characters that join or separate them, on any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import offsets_of
from streampack.ordering.hashing import hash_words


def words(*texts: str) -> list[list[str]]:
    data = [text.encode() for text in texts]
    offsets = offsets_of(np.array([len(d) for d in data]))
    joined = b"".join(data)
    documents, ends = hash_words(np.frombuffer(joined, np.uint8), offsets)
    found, at = [], 0
    for i in range(len(texts)):
        at = int(offsets[i])
        own = []
        for end in ends[documents.offsets[i] : documents.offsets[i + 1]].tolist():
            own.append(joined[at:end].decode().strip())
            at = end
        found.append(own)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two_2, three", ["one", "two_2", ",", "three"]),
        ("x=1;\n\ty", ["x", "=", "1", ";", "y"]),
        ("fünf слова", ["fünf", "слова"]),
        ("人工。ok", ["人", "工", "。", "ok"]),
        ("🙂🙂", ["🙂", "🙂"]),
        ("", []),
        ("  \n ", []),
    ],
)
def test_words_by_hand(text: str, expected: list[str]) -> None:
    assert words(text) == [expected]


def test_equal_words_have_equal_numbers_at_any_position() -> None:
    data = b"alpha beta" + b"beta,alpha"
    documents, _ = hash_words(np.frombuffer(data, np.uint8), np.array([0, 10, 20]))
    (a, b), (c, comma, d) = documents.document(0).tolist(), documents.document(1).tolist()
    assert (a, b) == (d, c)
    assert comma not in (a, b)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_have_words_within_their_text(texts: list[bytes]) -> None:
    offsets = offsets_of(np.array([len(text) for text in texts], dtype=np.int64))
    content = np.frombuffer(b"".join(texts), np.uint8)
    documents, ends = hash_words(content, offsets)
    assert len(documents) == len(texts)
    for i in range(len(texts)):
        own = ends[documents.offsets[i] : documents.offsets[i + 1]]
        assert (np.diff(own) > 0).all()
        assert ((own > offsets[i]) & (own <= offsets[i + 1])).all()
