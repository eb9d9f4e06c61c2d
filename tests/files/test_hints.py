"""Parts of remote shards are fetched where they begin, before their lanes read them."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.mixtures.hints import Hints
from streampack.sources.span_reader import SpanReader
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.plans import FIRST_BLOCKS, Plans
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds, write_tar
from tests.support.forked import Host
from tests.support.read_ahead import fetched_blocks, settle
from tests.support.servers import HTTPServer


def test_an_epoch_in_many_lanes_fetches_each_block_once(http: HTTPServer, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(1, 60_000, (4000, 400)).tolist()
    lines = "".join(json.dumps({"tokens": row}) + "\n" for row in ids)
    (http.folder / "a.jsonl").write_text(lines)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    dataset = PackedDataset(source, seq_len=1024, lanes=4, topology=Topology())
    loader = PackedLoader(dataset)
    tokens = sum(int(batch.cu_seqlens[-1]) for batch in loader)
    assert tokens >= 4000 * 400
    assert fetched_blocks(http) == list(range(-(-len(lines) // BLOCK_BYTES)))


DOCUMENTS = [np.full(500, n % 999 + 1, dtype=np.uint16) for n in range(6000)]


def write_parquet(folder: Path) -> None:
    table = pa.table({"tokens": DOCUMENTS, "others": DOCUMENTS})
    options: dict[str, Any] = {"compression": None, "use_dictionary": False}
    pq.write_table(table, folder / "a.parquet", row_group_size=300, **options)


def write_jsonl(folder: Path) -> None:
    lines = [json.dumps({"tokens": ids.tolist()}) + "\n" for ids in DOCUMENTS]
    (folder / "a.jsonl").write_text("".join(lines))


#: Writer, source and the place of the part on the weight: in the middle, or after its beginning.
LAYOUTS: dict[str, tuple[Callable[[Path], object], Any, float]] = {
    "a.parquet": (write_parquet, partial(sources.Parquet, tokens="tokens"), 0.5),
    "a.jsonl": (write_jsonl, partial(sources.JSONL, tokens="tokens"), 0.5),
    "a.npy": (
        lambda folder: np.save(folder / "a.npy", np.pad(DOCUMENTS, ((0, 0), (0, 1))).ravel()),
        partial(sources.Tokens, eos_id=0),
        0.5,
    ),
    "a.tar": (
        lambda folder: write_tar(folder / "a.tar", DOCUMENTS),
        partial(sources.WebDataset, tokens="npy"),
        0.02,
    ),
    "mds": (
        lambda folder: write_mds(folder, DOCUMENTS, "tokens", size_limit=1 << 26),
        partial(sources.MDS, tokens="tokens"),
        0.5,
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_part_is_read_without_a_request_after_it_was_planned(
    http: HTTPServer, tmp_path: Path, name: str
) -> None:
    write, kind, place = LAYOUTS[name]
    write(http.folder)
    source = kind(f"{http.url}/{name}", storage=Storage(cache_dir=tmp_path / "cache"))
    source.prepare()
    low = int(source.manifest.weight * place)
    http.requests.clear()
    source._plan("a", [(0, low, low + (1 << 20))])
    settle()
    assert len(fetched_blocks(http)) <= 2 * FIRST_BLOCKS  # a footer or table beside the first
    source._drop("a")
    http.requests.clear()
    assert sum(len(block) for block, *_ in source.read_shard(0, low, low + 8000, None, None)) > 0
    assert not http.requests


@pytest.mark.parametrize(
    ("low", "high", "blocks"),
    [(10 * BLOCK_BYTES + 5, 12 * BLOCK_BYTES + 5, [10, 11, 12]), (0, 6 * BLOCK_BYTES, [4, 5])],
)
def test_a_plan_fetches_a_part_from_its_first_byte(
    http: HTTPServer, tmp_path: Path, low: int, high: int, blocks: list[int]
) -> None:
    line = json.dumps({"tokens": [7] * 900}) + "\n"
    (http.folder / "a.jsonl").write_text(line * 3000)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    source.prepare()  # reads the first four blocks
    http.requests.clear()
    source._plan("a", [(0, low, high)])
    settle()
    assert fetched_blocks(http) == blocks


def test_parts_are_planned_before_their_lanes_read_them_and_many_before_they_are_dealt(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"tokens": [7] * 900}) + "\n"
    (http.folder / "a.jsonl").write_text(line * 3000)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    planned, read_lows = Counter[int](), dict[int, int]()
    plan, read = SpanReader.plan, SpanReader.read

    def counted(self: SpanReader, cursor: Any = None, **named: Any) -> Any:
        planned[self.pieces.low] += 1
        return plan(self, cursor, **named)

    def noted(self: SpanReader, *args: Any) -> Any:
        read_lows.setdefault(self.pieces.low, planned[self.pieces.low])
        return read(self, *args)

    monkeypatch.setattr(SpanReader, "plan", counted)
    monkeypatch.setattr(SpanReader, "read", noted)
    for _ in PackedLoader(PackedDataset(source, seq_len=1024, lanes=4, topology=Topology())):
        pass
    assert len(read_lows) > 8
    assert min(read_lows.values()) >= 1
    assert sum(count > 1 for count in read_lows.values()) >= len(read_lows) // 4


def test_the_line_behind_small_deals_is_planned_long_before_it_is_dealt(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"tokens": [7] * 900}) + "\n"
    (http.folder / "a.jsonl").write_text(line * 3000)
    source = sources.JSONL(
        f"{http.url}/a.jsonl", tokens="tokens", storage=Storage(cache_dir=tmp_path / "cache")
    )
    highs, seen = [0], list[tuple[int, int]]()
    plan, foretell = SpanReader.plan, Hints._foretell

    def counted(self: SpanReader, cursor: Any = None, **named: Any) -> Any:
        highs.append(self.pieces.high)
        return plan(self, cursor, **named)

    def noted(self: Hints, name: str, *args: Any) -> None:
        foretell(self, name, *args)
        epoch, dealt = self._dealer.dealt[name].position
        seen.append((epoch * source.manifest.weight + dealt, max(highs)))

    monkeypatch.setattr(SpanReader, "plan", counted)
    monkeypatch.setattr(Hints, "_foretell", noted)
    for _ in PackedLoader(PackedDataset(source, seq_len=1024, lanes=4, topology=Topology())):
        pass
    weight = source.manifest.weight
    assert min(dealt for dealt, planned in seen if planned == weight) < weight * 3 // 4


ENDS = """
import os, sys
from streampack import PackedDataset, PackedLoader, Topology, sources
count = int(os.environ["BATCHES"])
storage = sources.Storage(cache_dir=f"cache-{count}")
source = getattr(sources, sys.argv[2])(sys.argv[1], tokens=sys.argv[3], storage=storage)
dataset = PackedDataset(source, seq_len=256, lanes=8, topology=Topology())
batches = iter(PackedLoader(dataset))
for _ in range(count):
    next(batches)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Parquet", "WebDataset"])
@pytest.mark.parametrize(
    "ends", [(1, 4), pytest.param(range(1, 7), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_process_that_ends_while_parts_are_fetched_ends_well(
    http: HTTPServer, host: Host, tmp_path: Path, kind: str, ends: Sequence[int]
) -> None:
    is_tar = kind == "WebDataset"
    table = pa.table({"tokens": [[7] * 50] * 200})
    for number in range(4 if is_tar else 200):
        if is_tar:
            write_tar(http.folder / f"{number}.tar", DOCUMENTS[:2000])
        else:
            pq.write_table(table, http.folder / f"{number}.parquet", row_group_size=20)
    http.gate = lambda _: time.sleep(0.02)
    urls = http.url + ("/{0..3}.tar" if is_tar else "/{0..199}.parquet")
    (tmp_path / "ends.py").write_text(ENDS)
    environments = tuple({"BATCHES": str(batches)} for batches in ends)
    statuses, output = host.run(
        tmp_path / "ends.py", urls, kind, "npy" if is_tar else "tokens", environments=environments
    )
    assert statuses == [0] * len(ends), output


def test_a_file_cut_short_is_asked_for_no_range_that_it_lacks(
    http: HTTPServer, tmp_path: Path
) -> None:
    write_parquet(http.folder)
    (http.folder / "b.parquet").write_bytes(b"PAR1")
    urls = [f"{http.url}/{name}.parquet" for name in "ab"]
    source = sources.Parquet(urls, tokens="tokens", storage=Storage(cache_dir=tmp_path / "cache"))
    source.prepare()
    http.requests.clear()
    source._plan("a", [(0, 0, 10), (1, 0, 4)])
    settle()
    ranges = [request.range for request in http.requests if request.path.endswith("b.parquet")]
    assert ranges == ["bytes=0-3"]


def test_hints_are_not_repeated_by_a_store_that_fails(http: HTTPServer, tmp_path: Path) -> None:
    write_parquet(http.folder)
    storage = Storage(cache_dir=tmp_path / "cache", retries=3)
    source = sources.Parquet(f"{http.url}/a.parquet", tokens="tokens", storage=storage)
    source.prepare()
    http.requests.clear()
    http.fail_next = 1000
    source._plan("a", [(0, 0, 10)])
    settle()
    blocks = fetched_blocks(http)
    assert len(blocks) == len({*blocks}) > 0


def test_a_loop_that_is_left_leaves_no_plan(http: HTTPServer, tmp_path: Path) -> None:
    write_jsonl(http.folder)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    dataset = PackedDataset(source, seq_len=1024, lanes=4, topology=Topology())
    for _ in PackedLoader(dataset):
        break
    plans = storage.remote.fetcher.plans
    plans.plan("another", iter(()))
    plans.drop("another")
    plans.used("", 0)
    assert not plans._plans
    assert not plans._ahead


@pytest.fixture
def lines(http: HTTPServer, tmp_path: Path) -> sources.JSONL:
    """A run over 93 blocks of lines, with a first batch of a few of them."""
    (http.folder / "a.jsonl").write_text((json.dumps({"tokens": [7] * 900}) + "\n") * 9000)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    source.prepare()
    settle()
    http.requests.clear()
    return source


def twelve_lanes(source: sources.JSONL) -> PackedLoader:
    return PackedLoader(PackedDataset(source, seq_len=1024, lanes=12, topology=Topology()))


def test_little_is_fetched_before_a_first_batch_and_more_with_it(
    lines: sources.JSONL, http: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, held = Plans.go_on, list[Plans]()
    monkeypatch.setattr(Plans, "go_on", lambda plans: held.append(plans))
    loop = iter(twelve_lanes(lines))
    next(loop)
    settle()
    assert len(fetched_blocks(http)) <= 2 * FIRST_BLOCKS
    for plans in held:
        go_on(plans)
    settle()
    assert len(fetched_blocks(http)) > 16


def test_a_run_that_fails_before_its_first_batch_holds_back_no_other(
    lines: sources.JSONL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("as a hook would")

    monkeypatch.setattr("streampack.lane.rotation.Lane", fails)
    with pytest.raises(ValueError, match="hook"):
        next(iter(twelve_lanes(lines)))
    gc.collect()
    assert not lines.storage.remote.fetcher.plans.held_back


def test_before_a_first_batch_each_source_of_a_mixture_is_fetched_for_the_first_lane(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, count = Storage(cache_dir=tmp_path / "cache"), FIRST_BLOCKS + 3
    for number in range(count):
        (http.folder / f"{number}.jsonl").write_text('{"tokens": [7, 8]}\n' * 30_000)
    source = sources.Mixture(
        {
            str(number): sources.JSONL(
                f"{http.url}/{number}.jsonl", tokens="tokens", storage=storage
            )
            for number in range(count)
        }
    )
    source.prepare()
    settle()
    planned, held = list[Any](), list[int]()
    plan = SpanReader.plan

    def noted(self: SpanReader, cursor: Any = None, **named: Any) -> Any:
        planned.append(self.source)
        return plan(self, cursor, **named)

    def fails(*_: Any) -> None:
        held.append(storage.remote.fetcher.plans.held_back)
        raise ValueError("as a hook would")

    monkeypatch.setattr(SpanReader, "plan", noted)
    monkeypatch.setattr("streampack.lane.rotation.Lane", fails)
    with pytest.raises(ValueError, match="hook"):
        next(iter(PackedLoader(PackedDataset(source, seq_len=64, lanes=3, topology=Topology()))))
    assert len(set(map(id, planned[:count]))) == count
    assert held == [count]
