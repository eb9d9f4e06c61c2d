"""Keys of a column: which documents they take out, on any ranks, and which sets a state accepts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Topology, merge_states
from streampack.errors import ConfigError, StateError
from streampack.exclusion.lookup import Lookup
from streampack.ordering import ByField
from streampack.sources import Mixture
from streampack.testing import SimulatedRanks

COUNT = 600
#: Document i has the ids from i * SPAN + 1 on; every 40th is longer than several rows.
SPAN = 1000
RNG = np.random.default_rng(5)
DOCUMENTS = [
    np.arange(1, 1 + int(RNG.integers(1, 90)) * (1 if i % 40 else 9), dtype=np.uint32) + i * SPAN
    for i in range(COUNT)
]
NAMES = [f"https://example.org/{i:05}" for i in range(COUNT)]
OUT = [*range(0, COUNT, 7), *range(0, COUNT, 40)]
KEYS = [NAMES[i] for i in OUT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    table = pa.table({"tokens": DOCUMENTS, "url": NAMES, "number": range(COUNT)})
    for n in range(3):
        pq.write_table(table.slice(n * 200, 200), folder / f"{n}.parquet", row_group_size=70)
    with (folder / "lines.jsonl").open("w") as file:
        for i, (ids, name) in enumerate(zip(DOCUMENTS, NAMES, strict=True)):
            record = {"tokens": ids.tolist(), "url": name, "number": i}
            if i % 7 and i % 40 and i % 3 == 0:
                del record["url"]  # no key
            file.write(json.dumps(record) + "\n")
    return folder


Result = tuple[np.ndarray[Any, Any], dict[str, Any], int, int]


def run(
    files: str,
    exclude: Any,
    *,
    ranks: int = 1,
    state: Any = None,
    steps: int = 10_000,
    **loading: Any,
) -> Result:
    """Ids of all ranks, their merged state, and the documents and tokens counted as taken out."""
    simulated = SimulatedRanks(ranks)

    def of_rank(rank: int) -> tuple[Any, ...]:
        dataset = PackedDataset(
            files, tokens="tokens", seq_len=64, batch_size=2, lanes=6, exclude=exclude,
            topology=Topology(rank, ranks),
        )  # fmt: skip
        loader = PackedLoader(dataset, ranks=simulated[rank] if ranks > 1 else None, **loading)
        if state is not None:
            loader.load_state_dict(state)
        taken = [np.zeros(0, np.int64)]
        for _, batch in zip(range(steps), loader, strict=False):
            taken.append(batch.input_ids.numpy()[batch.document_ids.numpy() >= 0])
        return np.concatenate(taken), loader.state_dict(), loader.metrics()

    with ThreadPoolExecutor(ranks) as threads:
        taken, states, metrics = zip(*threads.map(of_rank, range(ranks)), strict=True)
    merged = json.loads(json.dumps(merge_states(states)))
    counts = [sum(getattr(m, name) for m in metrics) for name in ("excluded", "excluded_tokens")]
    return np.concatenate(taken), merged, counts[0], counts[1]


def of_kept(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.sort(ids[~np.isin((ids - 1) // SPAN, OUT)])


KEPT = of_kept(np.concatenate(DOCUMENTS))
TOKENS_OUT = sum(len(DOCUMENTS[i]) for i in set(OUT))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("files", ["*.parquet", "lines.jsonl"])
@pytest.mark.parametrize(
    "exclude", [{"url": KEYS}, {"number": OUT}, [{"url": KEYS[:50]}, {"number": OUT}]]
)
def test_keys_of_texts_and_of_integers_take_out_their_documents(
    files: str, exclude: Any, folder: Path
) -> None:
    ids, _, documents, tokens = run(str(folder / files), exclude)
    assert np.array_equal(np.sort(ids), KEPT)
    assert (documents, tokens) == (len(set(OUT)), TOKENS_OUT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "later", "workers"), [(1, 3, 0), (2, 1, 2), (3, 2, 0)])
@pytest.mark.parametrize("steps", [1, 20, 60])
def test_documents_are_taken_out_in_the_middle_of_a_run_and_every_token_is_counted(
    ranks: int, later: int, workers: int, steps: int, folder: Path
) -> None:
    files = str(folder / "*.parquet")
    before, state, *_ = run(files, None, ranks=ranks, steps=steps)
    after, end, _, tokens = run(files, {"url": KEYS}, ranks=later, state=state, num_workers=workers)
    delivered = np.concatenate([before, after])
    assert not np.isin((after - 1) // SPAN, OUT).any()
    assert np.array_equal(of_kept(delivered), KEPT)
    assert len(delivered) + tokens == sum(map(len, DOCUMENTS))
    (event,) = end["excluded"]
    assert (event["batch"], event["step"]) == (state["next_batch"], state["next_batch"] // later)


@pytest.mark.parametrize("overflow", ["split", "drop"])
def test_takedowns_in_a_row_count_every_token_once_delivered_dropped_or_taken_out(
    overflow: Any,
) -> None:
    records = [{"tokens": ids.tolist(), "n": i} for i, ids in enumerate(DOCUMENTS[:300])]
    state, counted = None, 0
    for taken_out, steps in (([], 20), (OUT[:30], 1), (OUT, 10_000)):
        dataset = PackedDataset(
            records, packer=BestFitDecreasing(seq_len=64, overflow=overflow), batch_size=2, lanes=6,
            tokens="tokens", exclude={"n": taken_out}, topology=Topology(),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        if state is not None:
            loader.load_state_dict(state)
        list(islice(loader, steps))
        state, metrics = loader.state_dict(), loader.metrics()
        counted += metrics.tokens + metrics.composition.dropped + metrics.excluded_tokens
    assert counted == sum(len(record["tokens"]) for record in records)


@pytest.mark.parametrize("kind", ["order", "mixture"])
def test_a_finite_run_ends_in_lanes_that_keep_no_document(kind: str) -> None:
    records = [{"tokens": [i + 1] * 3, "n": i} for i in range(6)]
    settings: dict[str, Any] = {"exclude": {"n": [0, 1, 2, 3, 4]}}
    source: Any = records
    if kind == "order":
        settings |= {"order": ByField("n"), "document_fields": {"n": "int32"}}
    else:
        source = Mixture(
            {"kept": records[5:], "other": records[:5]}, weights={"kept": 1, "other": 1}
        )
    dataset = PackedDataset(
        source, seq_len=8, batch_size=1, lanes=3, epochs=5, topology=Topology(), **settings
    )
    loader = PackedLoader(dataset)
    assert sum(batch.num_tokens for batch in loader) == 5 * 3
    assert loader.metrics().excluded == 5 * 5


def test_a_set_may_grow_and_another_is_refused(folder: Path, tmp_path: Path) -> None:
    files, withdrawn = str(folder / "0.parquet"), tmp_path / "withdrawn.txt"
    withdrawn.write_text("".join(f"{key}\n" for key in KEYS[:5]))
    _, first, *_ = run(files, {"url": withdrawn}, steps=3)
    for less in (None, {"url": KEYS[1:5]}, {"number": OUT}):
        with pytest.raises(StateError) as refused:
            run(files, less, state=first, steps=1)
        assert refused.value.setting == "exclude"
    other = [{"url": KEYS[4::-1]}, {"number": OUT}]  # the same keys in another order
    _, second, *_ = run(files, other, state=first, steps=3)
    with withdrawn.open("a") as file:
        file.write("\n".join(KEYS[5:]))
    _, third, *_ = run(
        files, [{"number": OUT}, {"url": withdrawn}, {"url": KEYS[4::-1]}], state=second, steps=3
    )
    assert [event["batch"] for event in third["excluded"]] == [0, 3, 3, 6]
    assert (
        run(files, {"url": KEYS[:5]}, state=first, steps=3)[1]
        == run(files, {"url": KEYS[:5]}, state=first, steps=3)[1]
    )


def test_a_column_that_records_lack_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError):
        run(str(folder / "0.parquet"), {"uri": KEYS})
    with pytest.raises(ConfigError) as unknown:
        run(str(folder / "0.parquet"), ["elsewhere.parquet, index 5"])
    assert unknown.value.setting == "exclude"
    with pytest.raises(ConfigError) as wrong:
        run(str(folder / "0.parquet"), 5)
    assert wrong.value.setting == "exclude"


TEXTS = st.text(max_size=20) | st.integers(-(10**6), 10**6).map(str)


@given(st.lists(TEXTS, max_size=30), st.lists(TEXTS | st.none(), max_size=60), st.data())
def test_a_lookup_equals_a_set(
    keys: list[str], texts: list[str | None], data: st.DataObject
) -> None:
    lookup, ordinals = Lookup([key.encode() for key in keys]), {}
    for i, key in enumerate(keys):
        ordinals.setdefault(key, i)
    texts = data.draw(st.permutations([*texts, *keys]))
    expected = [text in ordinals for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        column = pa.array([None, *texts], kind)[1:]
        found = lookup.of_column(column)
        assert (found > 0).tolist() == expected
        assert all(keys[n - 1] == t for n, t in zip(found.tolist(), texts, strict=True) if n)
    assert (lookup.of_column(pa.array(texts).dictionary_encode()) > 0).tolist() == expected
    assert [lookup(text) > 0 for text in texts] == expected
    numbers = [
        int(t) for t in texts if t is not None and t.lstrip("-").isdecimal() and str(int(t)) == t
    ]
    assert (lookup.of_column(pa.array([*numbers, None], pa.int64()))[:-1] > 0).tolist() == [
        str(n) in ordinals for n in numbers
    ]
