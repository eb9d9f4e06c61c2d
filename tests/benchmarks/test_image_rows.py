"""The benchmark of rows with images: ahead of the others by both limits."""

from __future__ import annotations

import pytest

from benchmarks.image_rows import KINDS, capacity_of, filled


@pytest.mark.slow  # like the other figures of pages, it changes only with a packer
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_fuller_than_the_others_by_tokens_and_by_patches(kind: str) -> None:
    found = filled(KINDS[kind], capacity_of(KINDS[kind]), 12_000)
    own, *others = [[float(share) for share in cell.split(" / ")] for cell in found]
    for other in others:
        assert own[0] > other[0]
        assert own[1] > other[1]
