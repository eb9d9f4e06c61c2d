"""The ledger in the state of a run: digests, and tokens by the values of fields."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    merge_states,
    packing,
    sources,
)
from streampack.accounts.leaf import CountPieces, count, hash_of
from streampack.accounts.totals import LEDGER, MOST_VALUES, OTHER, nothing, opened, plus, totals_of
from streampack.cli.app import app
from streampack.elastic import ElasticLoader
from streampack.errors import ConfigError, StateError
from tests.run import test_golden_batches as golden

LICENCES = ("mit", "apache", "bsd", "Ünfree")
PACKERS = {
    "best fit": packing.BestFitDecreasing(seq_len=64),
    "concat": packing.Concat(seq_len=64),
    "pad": packing.Pad(seq_len=64),
    "crop": packing.BestFitCrop(seq_len=64),
    "seamless": packing.Seamless(seq_len=64),
    "buckets": packing.Buckets(seq_lens=(32, 64), batch_tokens=128),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> golden.Corpus:
    return golden.Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of up to 200 tokens with masks, a licence and a year."""
    rng = random.Random(4)
    rows = []
    for i in range(300):
        size = 1 + int(60 * rng.random() ** 2) + 140 * (i % 23 == 0)
        tokens = [1 + rng.randrange(200) for _ in range(size)]
        mask = [rng.random() < 0.7 for _ in tokens]
        rows.append({"tokens": tokens, "mask": mask, "licence": rng.choice(LICENCES), "year": i})
    path = tmp_path_factory.mktemp("licences") / "0.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    return path


def dataset_of(
    file: Path, rank: int = 0, ranks: int = 1, ledger: Any = ("licence",), **settings: Any
) -> PackedDataset:
    source = sources.Parquet(str(file), tokens="tokens", loss_mask="mask")
    settings = {"packer": PACKERS["best fit"], "document_fields": {"licence": "text"}, **settings}
    settings["token_rules"] = TokenRules(eos_id=250, pad_id=0)
    if not hasattr(settings["packer"], "batch_tokens"):
        settings = {"batch_size": 2, **settings}
    topology = Topology(rank, ranks)
    return PackedDataset(source, lanes=4, topology=topology, ledger=ledger, **settings)


def after(state: Any, steps: int | None, ranks: int, file: Path, **settings: Any) -> Any:
    """The merged state of ranks that do not know of each other, after some steps."""
    states = []
    for rank in range(ranks):
        loader = PackedLoader(dataset_of(file, rank, ranks, **settings))
        if state is not None:
            loader.load_state_dict(state)
        for _ in islice(loader, steps):
            pass
        states.append(loader.state_dict())
    return json.loads(json.dumps(merge_states(states)))


def kept_by(dataset: PackedDataset) -> PackedLoader[Any]:
    """A loader of the same run, with a ledger."""
    config, stage = dataset._config, CountPieces()
    object.__setattr__(config.row_format, "stages", (*config.row_format.stages, stage))
    object.__setattr__(config, "on_take", (*config.on_take, count))
    return PackedLoader(dataset)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [k for k in golden.KINDS if "context" not in k and k != "ledger"])
def test_a_resumed_run_of_any_kind_has_the_digest_of_the_undisturbed_one(
    kind: str, corpus: golden.Corpus
) -> None:
    whole = kept_by(golden.KINDS[kind](corpus))
    batches = list(whole)
    expected = totals_of(whole.state_dict())
    assert expected["tokens"] == sum(batch.num_tokens for batch in batches)
    assert expected["loss_tokens"] == whole.metrics().loss_tokens
    assert expected["documents"] == whole.metrics().documents
    first = kept_by(golden.KINDS[kind](corpus))
    for _ in islice(first, 4):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    assert totals_of(state)["digest"] != expected["digest"]
    second = kept_by(golden.KINDS[kind](corpus))
    second.load_state_dict(state)
    for _ in second:
        pass
    assert totals_of(second.state_dict()) == expected


def test_runs_in_another_order_or_of_other_documents_have_other_digests(file: Path) -> None:
    runs = ({}, {"seed": 1}, {"shuffle": False}, {"packer": PACKERS["concat"]}, {"epochs": 2})
    digests = {totals_of(after(None, None, 1, file, **run))["digest"] for run in runs}
    assert len(digests) == len(runs)


def test_batches_that_change_their_places_change_the_digest_as_their_contents_do(
    file: Path,
) -> None:
    loader = PackedLoader(dataset_of(file))
    taken = [(b.step * 4 + b.lane, b._attached[LEDGER].digest) for b in loader if b.num_documents]
    numbers, batches = zip(*taken, strict=True)
    whole = totals_of(loader.state_dict())["digest"]

    def folded(digests: tuple[bytes, ...]) -> str:
        total = nothing()
        for number, digest in zip(numbers, digests, strict=False):
            total = plus(total, {**nothing(), "digest": f"{hash_of(digest, number):032x}"})
        return str(total["digest"])

    assert folded(batches) == whole
    swapped = {folded((*batches[:i], batches[i + 1], batches[i], *batches[i + 2 :]))
               for i in range(len(batches) - 1)}  # fmt: skip
    turned = {folded(batches[i:] + batches[:i]) for i in range(1, len(batches))}
    assert len({whole} | swapped | turned) == 2 * len(batches) - 1
    assert folded(batches[:-1]) != whole


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PACKERS)
def test_tokens_by_field_are_the_tokens_of_the_batches(name: str, file: Path) -> None:
    loader = PackedLoader(dataset_of(file, packer=PACKERS[name], provenance=True))
    rows = pq.read_table(file).to_pylist()
    tokens: Counter[str] = Counter()
    learnt: Counter[str] = Counter()
    documents: dict[str, set[int]] = {}
    for batch in loader:
        pieces, labels = batch.document_ids.flatten(), batch.labels.flatten()
        for number, index in enumerate(batch.provenance["index"].tolist()):
            licence = rows[index]["licence"]
            tokens[licence] += int((pieces == number).sum())
            learnt[licence] += int(((pieces == number) & (labels != -100)).sum())
            documents.setdefault(licence, set()).add(index)
    totals = totals_of(loader.state_dict())
    table = totals["fields"]["licence"]
    assert {licence: counts[0] for licence, counts in table.items()} == dict(tokens)
    assert {licence: counts[2] for licence, counts in table.items()} == dict(learnt)
    assert {name: counts[1] for name, counts in table.items()} == {
        name: len(each) for name, each in documents.items()
    }
    sums = [sum(column) for column in zip(*table.values(), strict=True)]
    assert sums == [totals["tokens"], totals["documents"], totals["loss_tokens"]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("name", PACKERS)
def test_any_ranks_and_resumes_give_the_totals_of_one_rank(
    name: str, file: Path, seed: int
) -> None:
    rng, packer = random.Random(f"{name} {seed}"), PACKERS[name]
    loader = PackedLoader(dataset_of(file, packer=packer))
    for _ in loader:
        pass
    expected = totals_of(loader.state_dict())  # which no merge of states has gone through
    state = None
    for _ in range(rng.randrange(1, 4)):
        state = after(state, rng.randrange(1, 6), rng.randrange(1, 4), file, packer=packer)
    state = after(state, None, 1, file, packer=packer)
    assert totals_of(state) == expected
    assert state["counted"][LEDGER]["gaps"] == []


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_count_as_the_loop_does(start: str, file: Path) -> None:
    expected = totals_of(after(None, None, 1, file))
    loader = PackedLoader(dataset_of(file), num_workers=2, multiprocessing_context=start)
    for _ in loader:
        pass
    assert totals_of(loader.state_dict()) == expected


def test_batches_that_the_loop_steps_over_or_has_not_taken_are_not_counted(file: Path) -> None:
    loader = PackedLoader(dataset_of(file))
    batches = iter(loader)
    first = next(batches)
    loader.skip(3)
    second, third = next(batches), next(batches)
    totals = totals_of(loader.state_dict(before=third))
    assert totals["batches"] == 2
    assert totals["tokens"] == first.num_tokens + second.num_tokens
    assert loader.state_dict()["counted"][LEDGER]["gaps"] == []


def test_a_state_without_a_ledger_goes_on_and_its_batches_are_named(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = after(None, 6, 1, file, ledger=False)
    assert "counted" not in state
    with pytest.raises(StateError) as caught:
        totals_of(state)
    assert caught.value.setting == "ledger"
    with caplog.at_level(logging.WARNING):
        state = after(state, 3, 2, file)
    assert state["counted"][LEDGER]["gaps"] == [[0, 6]]
    assert any("counts from batch 6 on" in record.message for record in caplog.records)
    state = after(state, 5, 1, file, ledger=False)
    state = after(state, 1, 1, file)
    assert state["counted"][LEDGER]["gaps"] == [[0, 6], [12, 17]]
    assert totals_of(state)["batches"] == 7


def test_the_ledger_of_a_rank_is_refused_by_others(file: Path) -> None:
    loader = PackedLoader(dataset_of(file, 0, 2))
    for _ in islice(loader, 3):
        pass
    alone = loader.state_dict()
    same = PackedLoader(dataset_of(file, 0, 2))
    same.load_state_dict(alone)
    next(iter(same))
    assert totals_of(same.state_dict())["batches"] == 4
    for place in ((1, 2), (0, 1), (0, 3)):
        with pytest.raises(StateError) as caught:
            opened(alone["counted"][LEDGER], place)
        assert caught.value.setting == "ledger"


def test_ledgers_that_began_at_different_states_are_not_merged(file: Path) -> None:
    begun = [after(None, steps, 1, file, seed=steps) for steps in (2, 2)]
    begun[1]["counted"][LEDGER]["own"]["tokens"] += 1
    states = []
    for rank, state in enumerate(begun):
        loader = PackedLoader(dataset_of(file, rank, 2, seed=2))
        from streampack.run.state import checksum

        loader.load_state_dict({**state, "checksum": checksum(state)})
        next(iter(loader))
        states.append(loader.state_dict())
    with pytest.raises(StateError) as caught:
        merge_states(states)
    assert caught.value.setting == "ledger"


def test_tokens_are_counted_by_epoch_on_any_ranks(file: Path) -> None:
    rows = pq.read_table(file).to_pylist()
    run: Any = {"epochs": 2, "ledger": ("licence", "epoch")}
    expected = after(None, None, 1, file, **run)
    tokens = sum(len(row["tokens"]) + (row["tokens"][-1] != 250) for row in rows)
    table = totals_of(expected)["fields"]["epoch"]
    assert {name: counts[1] for name, counts in table.items()} == dict.fromkeys("01", 300)
    assert len({counts[0] for counts in table.values()}) == 1
    assert table["0"][0] in (tokens, sum(len(row["tokens"]) for row in rows))
    state = after(None, 9, 2, file, **run)
    assert totals_of(after(state, None, 3, file, **run)) == totals_of(expected)
    batch = next(iter(dataset_of(file, **run)))
    assert batch.document_fields.keys() == {"licence"}


def test_a_resume_may_begin_to_count_by_epoch(file: Path) -> None:
    state = after(None, 9, 1, file, epochs=2)
    loader = PackedLoader(
        dataset_of(file, epochs=2, ledger=("licence", "epoch"), packer=PACKERS["concat"])
    )
    loader.load_state_dict(state, allow={"packer"})
    tokens = sum(batch.num_tokens for batch in loader)
    table = totals_of(loader.state_dict())["fields"]["epoch"]
    assert sum(counts[0] for counts in table.values()) == tokens
    assert table["1"][1] == 300


def test_further_values_count_as_others_and_sums_stay(file: Path) -> None:
    state = after(
        None, None, 1, file, ledger="year", document_fields={"year": "int32"},
    )  # fmt: skip
    totals = totals_of(state)
    table = totals["fields"]["year"]
    assert len(table) == MOST_VALUES + 1
    assert table[OTHER][1] == 300 - MOST_VALUES
    assert sum(counts[0] for counts in table.values()) == totals["tokens"]
    assert len(json.dumps(state["counted"])) < 16_000


TOTALS = st.builds(
    lambda digest, counts, values: {
        **nothing(),
        "digest": f"{digest:032x}",
        "tokens": counts,
        "fields": {"a": {str(value): [value, 1, 2] for value in values}},
    },
    st.integers(0, (1 << 128) - 1),
    st.integers(0, 1 << 60),
    st.lists(st.integers(0, 400), unique=True),
)


@given(st.lists(TOTALS, max_size=4), st.randoms())
def test_totals_add_up_in_any_order(parts: list[Any], rng: random.Random) -> None:
    def summed(order: list[Any]) -> Any:
        total = nothing()
        for each in order:
            total = plus(total, each)
        return total

    first, second = summed(parts), summed(rng.sample(parts, len(parts)))
    assert (first["digest"], first["tokens"]) == (second["digest"], second["tokens"])
    tables = [each["fields"].get("a", {}).values() for each in (first, second)]
    assert len({tuple(map(sum, zip(*table, strict=True))) for table in tables}) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"ledger": ["licence"], "document_fields": None},
        {"ledger": ["year"], "document_fields": {"year": "float32"}},
        {"ledger": 3},
        {"ledger": [1]},
        {"packer": packing.Buckets(seq_lens=(64, 128), cp=(1, 2), batch_tokens=256)},
    ],
)
def test_fields_and_packers_without_counts_are_refused(settings: Any, file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset_of(file, **settings)
    assert caught.value.setting == "ledger"


def test_trees_and_elastic_runs_refuse_it(file: Path, corpus: golden.Corpus) -> None:
    with pytest.raises(ConfigError) as caught:
        PackedDataset(
            sources.JSONL(corpus.path("groups.jsonl"), tokens="input_ids"), seq_len=128,
            layout="tree", document_fields={"n": "int32"}, ledger=["n"],
        )  # fmt: skip
    assert caught.value.setting == "ledger"
    with pytest.raises(ConfigError) as caught:
        ElasticLoader(dataset_of(file), step_batches=2)
    assert caught.value.setting == "ledger"


def test_the_command_prints_totals_and_a_table(file: Path, tmp_path: Path) -> None:
    state = after(None, 5, 2, file)
    totals = totals_of(state)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    run = CliRunner().invoke
    whole = run(app, ["ledger", str(path)])
    assert whole.exit_code == 0
    assert totals["digest"] in whole.output
    table = run(app, ["ledger", str(path), "--summary", "licence"]).output.splitlines()
    assert [line.split()[0] for line in table[1:5]] == sorted(
        LICENCES, key=lambda name: -totals["fields"]["licence"][name][0]
    )
    assert table[5].split()[:2] == ["all", f"{totals['tokens']:,}"]
    printed = json.loads(run(app, ["ledger", str(path), "--json"]).output)
    assert {name: printed[name] for name in totals} == totals
    for wrong in (["--summary", "domain"], ["--document", "a=b"], ["--dataset", "a.py:b"]):
        assert isinstance(
            run(app, ["ledger", str(path), *wrong]).exception, (ConfigError, SystemExit)
        )


def test_a_replay_has_the_digest_of_the_run_and_the_method_finds_as_the_command(
    file: Path,
) -> None:
    state = after(None, 5, 2, file)
    dataset = dataset_of(file)
    place = f"{file}, index 7"
    pieces = list(dataset.seen(state, [place]))
    assert {each.piece.index for each in pieces} == {7}
    assert sum(each.piece.stop - each.piece.start for each in pieces) == len(
        pq.read_table(file)["tokens"][7]
    )
    state["counted"][LEDGER]["own"]["digest"] = "0" * 32
    with pytest.raises(StateError):
        list(dataset.seen(state, [place]))
