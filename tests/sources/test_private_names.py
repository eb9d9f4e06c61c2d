"""A source or packer of one's own with a private name of streampack's."""

from __future__ import annotations

from typing import Any

import pytest

from streampack import PackedDataset, sources
from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing, Packer, Plan
from tests.support.memory_source import MemorySource, numbered_documents


class Own(sources.Source):
    """The least that a source must have."""

    tokenized = True

    def prepare(self) -> None:
        return

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Any:
        return []

    def describe(self) -> dict[str, Any]:
        return {"kind": "Own"}


def test_a_source_with_a_private_name_in_its_class_is_refused() -> None:
    class Taken(Own):
        _hints = "a list"

    with pytest.raises(ConfigError) as caught:
        PackedDataset(Taken(), seq_len=8)
    assert caught.value.setting == "_hints"


def test_a_source_with_a_private_attribute_is_refused_also_in_a_mixture() -> None:
    source = Own()
    source._hints = object()  # type: ignore[assignment]
    for make in (lambda: PackedDataset(source, seq_len=8), lambda: sources.Mixture({"a": source})):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.setting == "_hints"


def test_a_packer_with_a_private_name_is_refused() -> None:
    class Taken(Packer):
        seq_lens = (8,)
        _fits = True

        def plan(self, lengths: Any, *, final: bool, seed: int) -> Plan:
            return BestFitDecreasing(seq_len=8).plan(lengths, final=final, seed=seed)

        def describe(self) -> dict[str, Any]:
            return {"kind": "Taken"}

    with pytest.raises(ConfigError) as caught:
        PackedDataset([[1, 2]], packer=Taken())
    assert caught.value.setting == "_fits"


def test_private_names_of_ones_own_and_derived_classes_are_allowed() -> None:
    class Rows(BestFitDecreasing):
        pass

    class Documents(MemorySource):
        _mine = 1

    source = Documents([numbered_documents([3, 4, 5])])
    source._others = [0]  # type: ignore[attr-defined]
    PackedDataset(source, packer=Rows(seq_len=8))
