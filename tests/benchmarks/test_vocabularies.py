"""Vocabularies of production have the ids of tokenizers with the fast engine, unproved."""

from __future__ import annotations

import random
from itertools import chain, islice

import pytest
from tokenizers import Tokenizer as Engine

from benchmarks.vocabularies import MORE, VOCABULARIES
from tests.support.engines import differing, every_character, hostile, unproved

pytest.importorskip("gigatoken")


def made(name: str) -> Engine:
    try:
        return {**VOCABULARIES, **MORE}[name]().engine
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*VOCABULARIES, *MORE])
def test_vocabularies_from_wheels_have_equal_ids_for_hostile_texts(name: str) -> None:
    engine = made(name)
    fast = unproved(engine)
    assert (fast is None) == name.endswith("(trained)")
    if fast is not None:
        assert differing(engine, fast, hostile(random.randrange(1 << 30), 3800)) == []


@pytest.mark.parametrize(
    ("name", "step"),
    [pytest.param(name, 1, marks=pytest.mark.slow) for name in [*VOCABULARIES, *MORE]],
)
def test_every_character_of_unicode_has_equal_ids(name: str, step: int) -> None:
    """Of the planes that have letters; of the others one character of 61."""
    engine = made(name)
    fast = unproved(engine)
    texts = chain(every_character(step, 0x33480), every_character(61 * step))
    while fast is not None and (some := [*islice(texts, 1 << 15)]):
        assert differing(engine, fast, some) == []
