"""Vocabularies of production have the ids of tokenizers with the fast engine, unproved."""

from __future__ import annotations

import random

import pytest

from benchmarks.vocabularies import MORE, VOCABULARIES
from tests.support.engines import differing, hostile, unproved

pytest.importorskip("gigatoken")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*VOCABULARIES, *MORE])
def test_vocabularies_from_wheels_have_equal_ids_for_hostile_texts(name: str) -> None:
    try:
        engine = {**VOCABULARIES, **MORE}[name]().engine
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    fast = unproved(engine)
    assert (fast is None) == name.endswith("(trained)")
    if fast is not None:
        assert differing(engine, fast, hostile(random.randrange(1 << 30), 3800)) == []
