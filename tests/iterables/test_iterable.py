"""Iterables: lists, generators, map-style and stateful datasets."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, Topology
from streampack.documents.blocks import Documents, Texts
from streampack.errors import ConfigError, StateError
from streampack.iterables.source import Iterable
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from tests.support.corpora import byte_tokenizer
from tests.support.restarts import assert_restarts
from tests.support.source_contract import Document, read_lane

IDS = [list(range(i % 9)) for i in range(50)]
TEXTS = [f"document {i}" * (i % 5) for i in range(50)]


def documents(source: Source, skips: ErrorPolicy | None = None) -> list[Document]:
    lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    return [d for block, _ in read_lane(lane, None, skips) for _, d in block]


class ByIndex:
    """A map-style dataset that does not end by itself."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, i: int) -> list[int]:
        return IDS[i % len(IDS)]


READ: list[int] = []


class Stateful:
    """Iterates as Hugging Face's datasets do, and records the items read in `READ`."""

    def __init__(self, make_state: Callable[[int], Any] | None = None) -> None:
        self.make_state = make_state
        self.start = self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.at = self.start
        while self.at < len(IDS):
            self.at += 1
            READ.append(self.at - 1)
            yield IDS[self.at - 1]

    def state_dict(self) -> Any:
        return {"at": self.at} if self.make_state is None else self.make_state(self.at)

    def load_state_dict(self, state: Any) -> None:
        self.start = state["at"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("data", "fields", "expected"),
    [
        (IDS, {}, IDS),
        (TEXTS, {}, TEXTS),
        (tuple(tuple(ids) for ids in IDS), {}, IDS),
        ([np.array(ids, dtype=np.uint16) for ids in IDS], {}, IDS),
        ([np.array(ids, dtype=">i8") for ids in IDS], {}, IDS),
        ([{"t": ids, "x": None} for ids in IDS], {"tokens": "t"}, IDS),
        ([{"t": text} for text in TEXTS], {"text": "t"}, TEXTS),
        (ByIndex(), {}, IDS),
        (Stateful(), {}, IDS),
    ],
)
def test_items_of_every_kind_are_read_and_resumed(
    data: Any, fields: dict[str, str], expected: Any
) -> None:
    for block_documents, block_bytes in ((7, 1 << 20), (256, 60), (1, 1)):
        source = Iterable(
            data,
            reading=ReadOptions(block_documents=block_documents, block_bytes=block_bytes),
            **fields,
        )  # type: ignore[arg-type]
        assert_restarts(source, expected)
        assert_restarts(pickle.loads(pickle.dumps(source)), expected)


def test_a_factory_divides_the_data_into_any_number_of_lanes() -> None:
    source = Iterable(lambda lane, lanes: IDS[lane::lanes], reading=ReadOptions(block_documents=4))
    assert source.max_lanes() is None
    assert_restarts(source, IDS, lane_counts=(1, 2, 3, 7, 60))
    generators = Iterable(lambda lane, lanes: (text for text in TEXTS[lane::lanes]))
    assert not generators.tokenized
    assert_restarts(generators, TEXTS, lane_counts=(1, 4))


@pytest.mark.parametrize(
    ("function", "fits"),
    [
        (lambda lane, lanes: IDS[lane::lanes], True),
        (lambda lane, lanes: IDS, False),
        (lambda lane, lanes: ({"text": text} for text in TEXTS), False),
        (lambda lane, lanes: iter([np.arange(3)] * (lane + 1)), True),
    ],
    ids=["divides", "ignores its lanes", "ignores its lanes, records", "one is shorter"],
)
def test_a_function_that_ignores_its_lanes_is_refused_before_the_run(
    function: Any, fits: bool
) -> None:
    source = Iterable(function)
    source._check_lanes(1, seed=0, shuffle=True)
    if fits:
        source._check_lanes(4, seed=0, shuffle=True)
    else:
        with pytest.raises(ConfigError):
            PackedDataset(
                source, seq_len=64, lanes=4, topology=Topology(), tokenizer=byte_tokenizer()
            )


def test_without_a_factory_there_is_one_lane() -> None:
    source = Iterable(IDS)
    assert source.max_lanes() == 1
    with pytest.raises(ConfigError):
        source.lanes(2, seed=0, epoch=0, shuffle=False)


def test_a_generator_is_read_once_and_then_refused() -> None:
    source = Iterable(text for text in TEXTS)
    assert documents(source) == TEXTS
    with pytest.raises(ConfigError):
        documents(source)
    fresh = Iterable(text for text in TEXTS)
    lane = fresh.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    with pytest.raises(ConfigError):
        read_lane(lane, {"count": 3, "state": None})


def test_a_state_is_used_instead_of_rereading() -> None:
    data = Stateful()
    source = Iterable(data, reading=ReadOptions(block_documents=10))
    lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    cursor = read_lane(lane)[2][1]
    READ.clear()
    assert len(read_lane(lane, cursor)) == 2
    assert list(range(30, 50)) == READ
    assert (data.start, cursor) == (0, {"count": 30, "state": {"at": 30}})


def test_data_that_became_shorter_is_a_state_error() -> None:
    lane = Iterable(IDS[:5]).lanes(1, seed=0, epoch=0, shuffle=False)[0]
    with pytest.raises(StateError):
        read_lane(lane, {"count": 6, "state": None})
    with pytest.raises(StateError):
        read_lane(lane, {"count": 2, "state": {"at": 2}})


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32"])
def test_a_token_dtype_is_kept(dtype: str) -> None:
    lane = Iterable([np.arange(4, dtype=dtype)] * 3).lanes(1, seed=0, epoch=0, shuffle=False)[0]
    block, _ = next(lane.read(None, ErrorPolicy()))
    assert isinstance(block, Documents)
    assert block.tokens.dtype == dtype


class Counting:
    """Goes on where it was left, as a dataset with a state may."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[str]:
        while self.at < len(TEXTS):
            self.at += 1
            yield TEXTS[self.at - 1]
        self.at = 0


class CountingWithState(Counting):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class IteratorWithState(CountingWithState):
    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.at == len(TEXTS):
            raise StopIteration
        self.at += 1
        return TEXTS[self.at - 1]


def generated() -> Iterator[str]:
    yield from TEXTS


SHARED = CountingWithState()


@pytest.mark.parametrize(
    "data",
    [
        TEXTS,
        dict(enumerate(TEXTS)).values(),
        generated,
        lambda lane, lanes: TEXTS[lane::lanes],
        lambda lane, lanes: SHARED,
        CountingWithState(),
        IteratorWithState(),
        np.array(TEXTS, dtype=object),
    ],
    ids=lambda data: type(data).__name__,
)
def test_an_iterable_gives_every_document_once_and_stays_as_it_is(data: Any) -> None:
    before = dict(vars(data)) if hasattr(data, "__dict__") else None
    source = Iterable(data)
    for epoch in range(2):
        lane = source.lanes(1, seed=0, epoch=epoch, shuffle=True)[0]
        blocks = [d for block, _ in read_lane(lane) for _, d in block]
        assert sorted(map(str, blocks)) == sorted(TEXTS)
    assert documents(source) == TEXTS
    assert before is None or dict(vars(data)) == before
    assert SHARED.at == 0


def test_a_second_epoch_is_announced_to_data_that_wants_to_know() -> None:
    class Reordered:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[str]:
            return iter(TEXTS if self.epoch == 0 else TEXTS[::-1])

    source = Iterable(Reordered())
    for epoch in (0, 1, 0):
        lane = source.lanes(1, seed=0, epoch=epoch, shuffle=True)[0]
        blocks = [block for block, _ in lane.read(None, ErrorPolicy())]
        assert all(isinstance(block, Texts) for block in blocks)
        in_order = [
            (int(o["index"]), t) for b in blocks for o, t in zip(b.origin, b.texts, strict=True)
        ]  # type: ignore[union-attr]
        assert [t for _, t in sorted(in_order)] == (TEXTS[::-1] if epoch else TEXTS)
