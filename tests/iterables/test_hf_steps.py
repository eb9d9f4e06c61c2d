"""Steps of a Hugging Face stream that depend on its shards: one lane reads the rows it gives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, StateError
from streampack.iterables.hf import HFStream
from streampack.sources.reading import ReadOptions
from tests.support.restarts import assert_restarts

try:
    import datasets
except Exception as error:  # an old one beside a new pyarrow raises AttributeError
    pytest.skip(f"datasets cannot be imported: {error}", allow_module_level=True)
for needed in ("load_state_dict", "num_shards", "shard", "repeat"):
    if not hasattr(datasets.IterableDataset, needed):
        pytest.skip(f"datasets {datasets.__version__} is too old", allow_module_level=True)

SHARDS, ROWS = 6, 11
Step = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    # datasets 5 sleeps for five seconds whenever it has shuffled shards read to their end.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)


@pytest.fixture(scope="module", params=["json", "generator"])
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stream of six unequal shards, in tables or in rows; each document is one id, thrice."""
    shards = [
        [{"ids": [100 * shard + row + 1] * 3} for row in range(ROWS + shard)]
        for shard in range(SHARDS)
    ]
    if request.param == "generator":

        def rows(numbers: list[int]) -> Any:
            for number in numbers:
                yield from shards[number]

        return datasets.IterableDataset.from_generator(
            rows, gen_kwargs={"numbers": list(range(SHARDS))}
        )
    folder = tmp_path_factory.mktemp("shards")
    for number, shard in enumerate(shards):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shard))
    return datasets.load_dataset(
        "json",
        data_files=str(folder / "*.jsonl"),
        streaming=True,
        split="train",
        cache_dir=str(folder / "cache"),
    )


def two(stream: Any) -> list[Any]:
    return [stream.shard(2, 0), stream.shard(2, 1)]


IDS = [[100 * shard + row + 1] * 3 for shard in range(SHARDS) for row in range(ROWS + shard)]

#: Selections by position, which are the same documents in every epoch, and these documents.
SELECTIONS: dict[str, tuple[Step, list[list[int]]]] = {
    "take": (lambda s: s.take(17), IDS[:17]),
    "skip": (lambda s: s.skip(17), IDS[17:]),
    "skip of whole shards": (lambda s: s.skip(23), IDS[23:]),
    "skip, take": (lambda s: s.skip(5).take(30), IDS[5:35]),
    "skip, skip": (lambda s: s.skip(20).skip(20), IDS[40:]),
    "take, map": (lambda s: s.take(17).map(lambda row: row), IDS[:17]),
    "map, skip": (lambda s: s.map(lambda row: row).skip(17), IDS[17:]),
    "skip, shuffle": (lambda s: s.skip(17).shuffle(seed=3, buffer_size=8), IDS[17:]),
    "take, concatenation": (
        lambda s: datasets.concatenate_datasets([s.take(9), s.skip(50)]),
        IDS[:9] + IDS[50:],
    ),
    "concatenation, take": (
        lambda s: datasets.concatenate_datasets(two(s)).take(60),
        IDS[:60],
    ),
    "concatenation, map": (
        lambda s: datasets.concatenate_datasets([s.take(9), s.skip(50)]).map(lambda row: row),
        IDS[:9] + IDS[50:],
    ),
    "indices of filter": (
        lambda s: s.filter(lambda row, i: i % 4 == 1, with_indices=True),
        IDS[1::4],
    ),
    "indices of map": (
        lambda s: s.map(lambda row, i: {"ids": [i + 1] * 2}, with_indices=True),
        [[i + 1] * 2 for i in range(len(IDS))],
    ),
}
#: Others, which may give other documents in each epoch.
OTHERS: dict[str, Step] = {
    "repeat": lambda s: s.repeat(2),
    "interleave": lambda s: datasets.interleave_datasets(two(s)),
    "interleave, exhausted": lambda s: datasets.interleave_datasets(
        two(s), stopping_strategy="all_exhausted"
    ),
    "interleave, probabilities": lambda s: datasets.interleave_datasets(
        two(s), probabilities=[0.7, 0.3], seed=4
    ),
    "interleave, concatenation": lambda s: datasets.concatenate_datasets(
        [datasets.interleave_datasets(two(s), probabilities=[0.4, 0.6], seed=4), s.shard(3, 2)]
    ),
    "last batch": lambda s: s.map(
        lambda rows: rows, batched=True, batch_size=4, drop_last_batch=True
    ),
}
ALL = {name: step for name, (step, _) in SELECTIONS.items()} | OTHERS
#: Steps that give the same documents for any division into shards.
DIVIDED: dict[str, Step] = {
    "plain": lambda s: s,
    "shuffle": lambda s: s.shuffle(seed=3, buffer_size=8),
    "map": lambda s: s.map(lambda row: {"ids": row["ids"] * 2}),
    "batched map": lambda s: s.map(lambda rows: rows, batched=True, batch_size=4),
    "filter": lambda s: s.filter(lambda row: row["ids"][0] % 3 > 0),
    "columns": lambda s: s.rename_column("ids", "other").rename_column("other", "ids"),
    "concatenation": lambda s: datasets.concatenate_datasets(two(s)),
    "concatenation, shuffle": lambda s: datasets.concatenate_datasets(two(s)).shuffle(seed=2),
}


def counted(documents: Any) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, documents))


def documents_after(stream: Any, step: str) -> list[list[int]]:
    """The documents of a step, in order; `skip` of datasets before 5.2 repeats some."""
    return SELECTIONS[step][1] if step in SELECTIONS else [r["ids"] for r in OTHERS[step](stream)]


def dataset_of(stream: Any, **options: Any) -> PackedDataset:
    options = {"lanes": None, "topology": Topology(), **options}
    source = sources.open(stream, tokens="ids")
    return PackedDataset(source, seq_len=16, batch_size=2, **options)


def batch_documents(batch: Any) -> list[tuple[int, ...]]:
    """The documents of a batch, all of them whole."""
    ids, numbers = batch.input_ids.flatten(), batch.document_ids.flatten()
    return [tuple(ids[numbers == number].tolist()) for number in range(int(numbers.max()) + 1)]


def packed(dataset: PackedDataset) -> Counter[tuple[int, ...]]:
    return Counter(d for batch in PackedLoader(dataset) for d in batch_documents(batch))


@pytest.mark.parametrize("step", ALL)
def test_a_run_has_the_documents_that_the_stream_itself_gives(stream: Any, step: str) -> None:
    made = ALL[step](stream)
    assert packed(dataset_of(made)) == counted(documents_after(stream, step))
    source = HFStream(made, tokens="ids")
    assert source.max_lanes() == 1
    with pytest.raises(ConfigError) as refused:
        dataset_of(made, lanes=2)
    assert refused.value.setting == "lanes"


@pytest.mark.parametrize("step", SELECTIONS)
def test_every_epoch_selects_the_same_documents(stream: Any, step: str) -> None:
    make, once = SELECTIONS[step]
    assert packed(dataset_of(make(stream), epochs=3)) == counted(once * 3)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("step", ALL)
def test_every_cursor_leads_to_the_rest(stream: Any, step: str) -> None:
    source = HFStream(ALL[step](stream), tokens="ids", reading=ReadOptions(block_documents=9))
    expected = documents_after(stream, step)
    if "shuffle" in step:  # the order is the buffer's
        expected = [row["ids"] for row in source.open_lane(0, 1, 0, False, False)]
    assert_restarts(source, expected)


@pytest.mark.parametrize("step", DIVIDED)
def test_steps_that_treat_rows_alone_keep_their_lanes(stream: Any, step: str) -> None:
    made = DIVIDED[step](stream)
    source = HFStream(made, tokens="ids")
    shards = 1 if datasets.__version__.startswith("5.0.") and "shuffle" in step else SHARDS
    assert source.max_lanes() == shards
    assert "undivided" not in source.describe()
    assert packed(dataset_of(made, lanes=shards)) == counted(row["ids"] for row in made)


def test_training_and_validation_share_no_document_and_lose_none(stream: Any) -> None:
    train, valid = set[Any](), set[Any]()
    for topology in (Topology(rank, 3) for rank in range(3)):
        train |= set(packed(dataset_of(stream.skip(17), topology=topology, epochs=2)))
        source = sources.open(stream.take(17), tokens="ids")
        evaluation = PackedDataset.evaluation(source, seq_len=16, batch_size=2, topology=topology)
        valid |= set(packed(evaluation))
    assert not train & valid
    assert train | valid == set(map(tuple, IDS))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda s: s.shuffle(seed=3).take(17), ("take", "shuffle")),
        (lambda s: s.shuffle(seed=3).map(lambda row: row).skip(17), ("skip", "shuffle")),
        (lambda s: OTHERS["interleave, probabilities"](s).take(9), ("take", "interleave_datasets")),
        (
            lambda s: datasets.concatenate_datasets([s.shuffle(seed=3).take(17), s.skip(50)]),
            ("take", "shuffle"),
        ),
    ],
)
def test_a_selection_after_a_shuffle_is_refused_for_several_epochs(
    stream: Any, made: Step, named: tuple[str, str]
) -> None:
    shuffled = made(stream)
    for epochs in (2, None):
        with pytest.raises(ConfigError) as refused:
            dataset_of(shuffled, epochs=epochs)
        assert refused.value.setting == "epochs"
        assert all(call in str(refused.value) for call in named)
    source = sources.open(shuffled, tokens="ids")
    assert isinstance(source, HFStream)
    once = [row["ids"] for row in source.open_lane(0, 1, 0, False, False)]
    assert packed(dataset_of(shuffled, epochs=1)) == counted(once)
    assert packed(dataset_of(shuffled, epochs=2, shuffle=False)) == counted(once * 2)
    mixture = sources.Mixture({"a": sources.open(shuffled, tokens="ids")}, weights={"a": 1})
    with pytest.raises(ConfigError, match='In source "a"'):
        PackedDataset(mixture, seq_len=16, epochs=2)


def test_a_state_that_divided_a_step_is_refused_with_the_cause(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:  # every step was divided
        before.setattr("streampack.iterables.hf.undivided_step", lambda node: "")
        loader = PackedLoader(dataset_of(stream.take(17), lanes=3))
        next(iter(loader))
        state = loader.state_dict()
    for lanes in (None, 1):
        with pytest.raises(StateError) as refused:
            PackedLoader(dataset_of(stream.take(17), lanes=lanes)).load_state_dict(state)
        assert "take was divided among lanes" in str(refused.value)
