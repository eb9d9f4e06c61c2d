"""The benchmark of images: planned as the processor's, and smaller than their pixels."""

from __future__ import annotations


def test_a_row_has_the_tokens_and_the_bytes_of_an_image() -> None:
    from benchmarks.images import measured

    tokens, _, _, _, held, pixels, times = measured((224, 224, "JPEG", False), 2, 1)
    assert tokens == "90"
    assert held.endswith("KB")
    assert pixels == "1.2 MB"
    assert int(times) > 50
