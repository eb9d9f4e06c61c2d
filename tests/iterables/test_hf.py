"""Streaming datasets of Hugging Face: real ones, over real files."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import ConfigError
from streampack.iterables.hf import HFStream
from streampack.iterables.iterating import has_exact_state
from streampack.sources.reading import ReadOptions
from tests.support.restarts import assert_rest, assert_restarts
from tests.support.source_contract import read_lane

try:
    import datasets
except Exception as error:  # an old one beside a new pyarrow raises AttributeError
    pytest.skip(f"datasets cannot be imported: {error}", allow_module_level=True)
for needed in ("load_state_dict", "num_shards", "shard"):
    if not hasattr(datasets.IterableDataset, needed):
        pytest.skip(f"datasets {datasets.__version__} is too old", allow_module_level=True)

TEXTS = [f"text {i} " * (i % 4) for i in range(60)]
IDS = [list(range(i % 7 + 1)) for i in range(60)]


@pytest.fixture(params=["jsonl", "parquet", "generator"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A streaming dataset in six shards of ten rows."""
    rows = [
        {"text": text, "ids": ids, "mask": [i % 2 for i in ids], "n": n}
        for n, (text, ids) in enumerate(zip(TEXTS, IDS, strict=True))
    ]
    if request.param == "generator":

        def generate(shards: list[int]) -> Any:
            for shard in shards:
                yield from rows[10 * shard : 10 * shard + 10]

        return datasets.IterableDataset.from_generator(
            generate, gen_kwargs={"shards": list(range(6))}
        )
    for shard in range(6):
        part = rows[10 * shard : 10 * shard + 10]
        path = tmp_path / f"{shard}.{request.param}"
        if request.param == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(part), path, row_group_size=4)
    return datasets.load_dataset(
        {"jsonl": "json"}.get(request.param, request.param),
        data_files=[str(tmp_path / f"{shard}.{request.param}") for shard in range(6)],
        streaming=True,
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )


@pytest.mark.sampled(1)
def test_lanes_give_each_document_once_and_every_cursor_leads_on(stream: Any) -> None:
    for fields, expected in (
        ({"text": "text"}, TEXTS),
        ({"tokens": "ids", "loss_mask": "mask"}, IDS),
    ):
        source = HFStream(stream, reading=ReadOptions(block_documents=4), **fields)
        assert_restarts(source, expected, lane_counts=(1, 4))


def test_a_pickled_source_reads_the_same(stream: Any) -> None:
    try:
        copied = pickle.loads(pickle.dumps(HFStream(stream, text="text")))
    except (AttributeError, pickle.PicklingError):
        pytest.skip("a local generator function cannot be pickled")
    assert_restarts(copied, TEXTS, lane_counts=(3,))


def test_resuming_uses_the_datasets_state(stream: Any, caplog: pytest.LogCaptureFixture) -> None:
    if not has_exact_state(stream):
        pytest.skip("the state of datasets before 3.6 may lead to other rows")
    lane = HFStream(stream, text="text", reading=ReadOptions(block_documents=7)).lanes(
        2, seed=0, epoch=0, shuffle=False
    )[1]
    blocks = read_lane(lane)
    with caplog.at_level(logging.WARNING):
        assert_rest(lane, blocks[2][1], blocks[3:])
    assert "again" not in caplog.text
    assert blocks[2][1]["state"] is not None


@pytest.mark.sampled(1)
def test_mapped_and_filtered_datasets_resume_exactly(stream: Any) -> None:
    short = stream.filter(lambda row: row["n"] % 3 > 0).map(lambda row: {"text": row["text"] + "!"})
    expected = [text + "!" for i, text in enumerate(TEXTS) if i % 3]
    assert_restarts(
        HFStream(short, text="text", reading=ReadOptions(block_documents=4)),
        expected,
        lane_counts=(1, 3),
    )
    batched = stream.map(
        lambda rows: {"text": [t * 2 for t in rows["text"]]}, batched=True, batch_size=3
    )
    assert_restarts(
        HFStream(batched, text="text", reading=ReadOptions(block_documents=4)),
        [t * 2 for t in TEXTS],
        (1, 3),
    )


def test_epochs_hold_the_same_documents_and_resume_exactly(stream: Any) -> None:
    source = HFStream(stream, text="text", reading=ReadOptions(block_documents=4))
    for epoch in (1, 2):
        found: list[Any] = []
        for lane in source.lanes(3, seed=0, epoch=epoch, shuffle=True):
            blocks = read_lane(lane)
            found += [document for block, _ in blocks for _, document in block]
            for k, (_, cursor) in enumerate(blocks):
                assert_rest(lane, cursor, blocks[k + 1 :])
        assert sorted(found) == sorted(TEXTS)


def test_a_shuffle_buffer_is_reread_because_its_state_forgets(
    stream: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # datasets 5 sleeps for five seconds whenever it has shuffled shards read to their end.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    shuffled = stream.shuffle(seed=7, buffer_size=8)
    source = HFStream(shuffled, text="text", reading=ReadOptions(block_documents=4))
    found: list[Any] = []
    with caplog.at_level(logging.WARNING):
        for lane in source.lanes(min(2, source.max_lanes()), seed=0, epoch=0, shuffle=True):
            blocks = read_lane(lane)
            found += [document for block, _ in blocks for _, document in block]
            for k, (_, cursor) in enumerate(blocks):
                assert_rest(lane, cursor, blocks[k + 1 :])
    assert sorted(found) == sorted(TEXTS)
    assert "again" in caplog.text


def test_a_shuffled_stream_has_its_lanes_or_the_error_tells_how_to_get_them(stream: Any) -> None:
    source = HFStream(stream.shuffle(seed=7, buffer_size=8), text="text")
    if source.max_lanes() == 6:
        assert len(source.lanes(6, seed=0, epoch=0, shuffle=True)) == 6
        return
    assert datasets.__version__.startswith("5.0.")
    with pytest.raises(ConfigError) as refused:
        source.lanes(2, seed=0, epoch=0, shuffle=True)
    assert refused.value.setting == "lanes"
    assert "leave .shuffle() out" in refused.value.remedy


def test_fewer_shards_than_lanes_is_refused_with_the_numbers(stream: Any) -> None:
    source = HFStream(stream, text="text")
    assert source.max_lanes() == 6
    with pytest.raises(ConfigError):
        source.lanes(7, seed=0, epoch=0, shuffle=False)
