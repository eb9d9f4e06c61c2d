"""Caps: no more tokens of a value than named, the same batches on any ranks and after any stop."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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
from streampack.accounts.caps import met_tokens
from streampack.accounts.totals import totals_of
from streampack.cli.app import app
from streampack.errors import ConfigError, StateError
from streampack.testing import SimulatedRanks
from tests.support.drawn import drawn

COUNT, LANES = 240, 6
DOMAINS = ("web", "web", "web", "code", "law")
RNG = random.Random(8)
#: Document i has its index as its ids; every 40th is longer than two rows.
LENGTHS = [1 + RNG.randrange(40) if i % 40 else 150 for i in range(COUNT)]
OF = [RNG.choice(DOMAINS) for _ in range(COUNT)]
YEARS = [2000 + i % 3 for i in range(COUNT)]
TOKENS = {domain: sum(n for n, of in zip(LENGTHS, OF, strict=True) if of == domain)
          for domain in DOMAINS}  # fmt: skip
CAPS = {"domain": {"web": 1500, "law": 200}, "year": {2001: 900}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids = [[i + 1] * size for i, size in enumerate(LENGTHS)]
    table = pa.table({"tokens": ids, "domain": OF, "year": YEARS})
    path = tmp_path_factory.mktemp("domains") / "0.parquet"
    pq.write_table(table, path, row_group_size=50)
    return path


def dataset_of(
    file: Path, rank: int = 0, ranks: int = 1, caps: Any = CAPS, **settings: Any
) -> PackedDataset:
    source = settings.pop("source", None) or sources.Parquet(str(file), tokens="tokens")
    settings = {"seq_len": 64, "batch_size": 1, "lanes": LANES, **settings}
    if caps is not None:
        settings = {"document_fields": {"domain": "text", "year": "int32"}, **settings}
    return PackedDataset(
        source, token_rules=TokenRules(pad_id=0), topology=Topology(rank, ranks),
        ledger=caps or False, **settings,
    )  # fmt: skip


Batches = dict[tuple[int, int], list[int]]


def after(
    state: Any, steps: int | None, ranks: int, file: Path, *, workers: int = 0, **settings: Any
) -> tuple[Batches, Any]:
    """The batches of all ranks, by step and lane, and their merged state."""
    simulated = SimulatedRanks(ranks)

    def of_rank(rank: int) -> tuple[Batches, Any]:
        dataset = dataset_of(file, rank, ranks, **settings)
        connected = simulated[rank] if ranks > 1 else None
        loader = PackedLoader(dataset, num_workers=workers, ranks=connected)
        if state is not None:
            loader.load_state_dict(state)
        batches = {
            (batch.step, batch.lane): batch.input_ids.flatten().tolist()
            for batch in islice(loader, steps)
            if batch.num_documents
        }
        return batches, loader.state_dict()

    with ThreadPoolExecutor(ranks) as threads:
        taken, states = zip(*threads.map(of_rank, range(ranks)), strict=True)
    every = {place: row for batches in taken for place, row in batches.items()}
    return every, json.loads(json.dumps(merge_states(states)))


def delivered(batches: Batches) -> Counter[int]:
    """Tokens of each document."""
    tokens = Counter(token for batch in batches.values() for token in batch)
    del tokens[0]
    return Counter({token - 1: count for token, count in tokens.items()})


def check_caps(tokens: Counter[int], caps: Any, epochs: int = 1) -> None:
    """No value is above its cap; documents are whole, and those without a cap all come."""
    for i in range(COUNT):
        mine = caps.get("domain", {}).get(OF[i]), caps.get("year", {}).get(YEARS[i])
        assert tokens[i] % LENGTHS[i] == 0
        assert mine != (None, None) or tokens[i] == epochs * LENGTHS[i]
        assert tokens[i] <= epochs * LENGTHS[i]
    for values, names in ((OF, "domain"), (YEARS, "year")):
        for value, cap in caps.get(names, {}).items():
            assert sum(tokens[i] for i in range(COUNT) if values[i] == value) <= cap


_whole: dict[Path, tuple[Batches, Any]] = {}


@pytest.fixture
def whole(file: Path) -> tuple[Batches, Any]:
    """The undisturbed run of one rank, made once, when the test has its cache folder."""
    if file not in _whole:
        _whole[file] = after(None, None, 1, file)
    return _whole[file]


def test_no_value_is_above_its_cap_and_all_other_documents_come_once(
    whole: tuple[Batches, Any],
) -> None:
    batches, state = whole
    tokens = delivered(batches)
    check_caps(tokens, CAPS)
    table = totals_of(state)["fields"]["domain"]
    assert {domain: counts[0] for domain, counts in table.items()} == {
        domain: sum(n for i, n in tokens.items() if OF[i] == domain) for domain in set(DOMAINS)
    }
    # A lane's part is used up to its last document.
    assert table["web"][0] > CAPS["domain"]["web"] - LANES * 150
    met = met_tokens(state)["domain"]
    assert met["web"] == (1500, sum(n for n, d, y in zip(LENGTHS, OF, YEARS, strict=True)
                                    if d == "web"))  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (3, 0), (1, 2)])
def test_any_ranks_and_workers_give_the_same_batches(
    ranks: int, workers: int, whole: tuple[Batches, Any], file: Path
) -> None:
    batches, state = after(None, None, ranks, file, workers=workers)
    assert batches == whole[0]
    assert totals_of(state) == totals_of(whole[1])
    assert met_tokens(state) == met_tokens(whole[1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(40))
def test_a_run_that_is_stopped_anywhere_goes_on_with_the_same_batches(
    seed: int, whole: tuple[Batches, Any], file: Path
) -> None:
    rng, batches, state = random.Random(seed), {}, None
    for steps in (*(rng.randrange(1, 40) for _ in range(3)), None):
        more, state = after(state, steps, rng.choice([1, 2, 3]), file)
        batches |= more
    assert batches == whole[0]
    assert totals_of(state) == totals_of(whole[1])


def test_a_lane_leaves_out_the_first_document_above_its_part_and_all_later_ones(
    file: Path,
) -> None:
    caps = {"domain": {"web": 700, "code": 10_000}}
    batches, _ = after(None, None, 1, file, caps=caps, lanes=1, shuffle=False)
    met, expected = 0, Counter[int]()
    for i, size in enumerate(LENGTHS):
        met += size if OF[i] == "web" else 0
        if OF[i] != "web" or met <= 700:
            expected[i] = size
    assert delivered(batches) == expected


@given(
    st.dictionaries(st.sampled_from(["web", "code", "law"]), st.integers(0, 5000)),
    st.dictionaries(st.sampled_from([2000, 2001, 1999]), st.integers(0, 5000)),
    st.sampled_from([1, 2, 6]),
    st.sampled_from([1, 2]),
    st.sampled_from([packing.Concat(seq_len=64), packing.BestFitDecreasing(seq_len=64)]),
    st.integers(1, 30),
)
@drawn(2)
def test_drawn_caps_hold(
    file: Path, domains: Any, years: Any, lanes: int, epochs: int, packer: Any, steps: int
) -> None:
    caps = {"domain": domains, "year": years}
    run: Any = {"caps": caps, "lanes": lanes, "epochs": epochs, "packer": packer, "seq_len": None}
    batches, _ = after(None, None, 1, file, **run)
    check_caps(delivered(batches), caps, epochs)
    first, state = after(None, steps, min(lanes, 2), file, **run)
    later, _ = after(state, None, 1, file, **run)
    assert first | later == batches


def mixed(file: Path) -> sources.Mixture:
    parts = {name: sources.Parquet(str(file), tokens="tokens", where=where)
             for name, where in (("a", "year == 2000"), ("b", "year != 2000"))}  # fmt: skip
    return sources.Mixture(parts, weights={"a": 1, "b": 2}, epochs={"a": 1, "b": 1})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["order", "mixture", "endless"])
def test_mixtures_orders_and_endless_runs_have_caps(kind: str, file: Path) -> None:
    from streampack import ordering

    def run(state: Any, steps: int | None, ranks: int) -> tuple[Batches, Any]:
        more: Any = {"source": mixed(file)} if kind == "mixture" else {}
        if kind == "order":
            more = {"order": ordering.GroupBy("year"), "packer": packing.Concat(seq_len=64),
                    "seq_len": None}  # fmt: skip
        if kind == "endless":
            more, steps = {"epochs": None}, 60 if steps is None else steps
        return after(state, steps, ranks, file, **more)

    batches, _ = run(None, None, 1)
    if kind != "endless":
        check_caps(delivered(batches), CAPS)
    else:
        tokens = delivered(batches)
        assert sum(n for i, n in tokens.items() if OF[i] == "web") <= 1500
    first, state = run(None, 7, 2)
    later, _ = run(state, None if kind != "endless" else 46, 1)
    assert first | later == batches


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", ["packer", "source"])
def test_caps_hold_over_a_change_of_the_packer_or_of_the_sources(change: str, file: Path) -> None:
    mixture, longer = mixed(file), packing.Concat(seq_len=96)
    before: Any = {} if change == "packer" else {"source": mixture}
    now: Any = {"packer": longer, "seq_len": None}
    if change == "source":
        parts = {**mixture.sources, "c": sources.Parquet(str(file), tokens="tokens")}
        now = {
            "source": sources.Mixture(
                parts, weights={"a": 1, "b": 2, "c": 1}, epochs={"a": 1, "b": 1}
            )
        }
    first, state = after(None, 8, 2, file, **before)
    loader = PackedLoader(dataset_of(file, **now))
    loader.load_state_dict(state, allow={change})
    later = {(b.step, b.lane, 1): b.input_ids.flatten().tolist() for b in loader}
    tokens = delivered(first) + delivered(later)  # type: ignore[arg-type]
    check_caps(tokens, CAPS, epochs=2 if change == "source" else 1)
    assert met_tokens(loader.state_dict())["domain"]["web"][1] == TOKENS["web"] * (
        2 if change == "source" else 1
    )


def test_documents_may_be_taken_out_of_a_run_with_caps(file: Path) -> None:
    first, state = after(None, 20, 1, file)
    out = [i for i in range(COUNT) if i % 4 == 1]
    places = [f"{file}, index {i}" for i in out]
    later, end = after(state, None, 2, file, exclude=places)
    tokens = delivered(first) + delivered(later)
    assert not delivered(later).keys() & set(out)
    check_caps(Counter({i: n for i, n in tokens.items() if i not in out})
               + Counter({i: LENGTHS[i] for i in out if OF[i] == "code" and YEARS[i] != 2001}),
               CAPS)  # fmt: skip
    assert met_tokens(end)["domain"]["web"][1] < met_tokens(state)["domain"]["web"][1] + sum(
        LENGTHS[i] for i in range(COUNT) if OF[i] == "web"
    )


def test_the_ledger_of_a_run_with_caps_finds_documents_on_lengths_and_in_the_corpus(
    file: Path, whole: tuple[Batches, Any]
) -> None:
    from streampack.accounts.lengths import lengths_folder
    from streampack.ledger.replay import Replayed
    from streampack.ledger.seen import seen

    _, state = after(None, 30, 1, file)
    places = [f"{file}, index {i}" for i in range(0, COUNT, 9)]
    tokens: list[Counter[int]] = []
    for folder in (lengths_folder(), lengths_folder() / "none"):
        replayed = Replayed(folder)
        found = list(seen(dataset_of(file), state, places, replayed=replayed))
        tokens.append(Counter())
        for each in found:
            tokens[-1][each.piece.index] += each.piece.stop - each.piece.start
        assert bool(replayed.counts["lengths"]) == (folder == lengths_folder())
    expected = {i: n for i, n in delivered(whole[0]).items() if i % 9 == 0}
    assert dict(tokens[0]) == dict(tokens[1]) == expected


def test_documents_above_caps_are_counted(file: Path, whole: tuple[Batches, Any]) -> None:
    loader = PackedLoader(dataset_of(file))
    for _ in loader:
        pass
    left = sum(LENGTHS) - sum(delivered(whole[0]).values())
    assert loader.metrics().excluded_tokens == left
    assert loader.metrics().excluded == COUNT - len(delivered(whole[0]))


def test_a_state_goes_on_with_its_caps_alone(file: Path) -> None:
    _, state = after(None, 3, 1, file)
    for caps in ({"domain": {"web": 1501}}, ["domain"], {**CAPS, "domain": {"web": 1500}}):
        with pytest.raises(StateError) as caught:
            dataset_of(file, caps=caps).load_state_dict(state)
        assert str(caught.value.setting).startswith("caps")


def test_an_endless_run_of_documents_above_caps_is_an_error(file: Path) -> None:
    caps = {"domain": dict.fromkeys(DOMAINS, 500)}
    with pytest.raises(ConfigError) as caught:
        after(None, None, 1, file, caps=caps, epochs=None)
    assert caught.value.setting == "ledger"


@pytest.mark.parametrize(
    "caps",
    [
        {"domain": {3: 5}},
        {"year": {"2001": 5}},
        {"domain": {"web": -1}},
        {"domain": {"web": 1.5}},
        {"domain": 5},
        {"epoch": {0: 5}},
        {"licence": {"mit": 5}},
    ],
)
def test_caps_that_are_no_tokens_by_value_are_refused(caps: Any, file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset_of(file, caps=caps)
    assert caught.value.setting == "ledger"


def test_the_command_prints_tokens_that_lanes_have_met(
    file: Path, whole: tuple[Batches, Any], tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(whole[1], sort_keys=True))
    table = CliRunner().invoke(app, ["ledger", str(path), "--summary", "domain"]).output
    for value, (most, met) in met_tokens(whole[1])["domain"].items():
        assert f"{value}: at most {most:,} tokens; lanes have met {met:,}" in table


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["one epoch", "two epochs", "mixture"])
def test_explain_and_the_steps_know_of_caps(
    kind: str, file: Path, whole: tuple[Batches, Any]
) -> None:
    run: Any = {"source": mixed(file)} if kind == "mixture" else {}
    run |= {"epochs": 2} if kind == "two epochs" else {}
    dataset = dataset_of(file, **run)
    _, state = after(None, None, 1, file, **run)
    report = dataset.explain()
    known = met_tokens(state)
    for cap in report.as_dict()["caps"]:
        assert cap["most"] == known[cap["field"]][cap["value"]][0]
        if cap["field"] == "domain":
            assert cap["met"] == pytest.approx(known["domain"][cap["value"]][1], rel=0.02)
        line = f'{cap["field"]} "{cap["value"]}": at most {cap["most"]:,} tokens'
        assert line in str(report)
    loader = PackedLoader(dataset)
    loader.load_state_dict(after(None, 30, 1, file, **run)[1])
    for estimate in (dataset.estimate_steps(), loader.estimate_steps()):
        assert abs(estimate.steps - sum(1 for _ in PackedLoader(dataset))) <= estimate.error
        without = dataset_of(file, caps=None, **run).estimate_steps()
        assert estimate.steps < 0.7 * without.steps


def test_groups_have_no_caps(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    record = {"tokens": [[1, 2], [3]], "domain": ["web", "web"]}
    path.write_text(9 * (json.dumps(record) + "\n"))
    with pytest.raises(ConfigError) as caught:
        PackedDataset(
            sources.JSONL(str(path), tokens="tokens"), seq_len=64,
            document_fields={"domain": "text"}, ledger={"domain": {"web": 5}},
        )  # fmt: skip
    assert caught.value.setting == "ledger"
