"""`where=` reads the rows of pyarrow's own filter, and fetches no row group without such rows."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, sources
from streampack.errors import ConfigError, StateError
from streampack.formats.parquet.statistics import pruned_groups
from streampack.predicates import Predicate
from streampack.sources import Storage
from streampack.sources.error_policy import ErrorPolicy
from tests.support.corpora import byte_tokenizer
from tests.support.fixtures import http, storage
from tests.support.servers import HTTPServer
from tests.support.source_contract import assert_source_contract, read_all

__all__ = ["http", "storage"]

ROWS = 4000
DAYS = [date(2024, 1, 1) + timedelta(days=n // 100) for n in range(ROWS)]
TABLE = pa.table(
    {
        "text": [f"document {n}" for n in range(ROWS)],
        "lang": pa.array([["de", "en", "fr"][3 * n // ROWS] for n in range(ROWS)]),
        "score": np.arange(ROWS) / ROWS,
        "n": np.arange(ROWS),
        "day": pa.array(DAYS, pa.date32()),
        "good": [n % 2 == 0 for n in range(ROWS)],
    }
)
#: Conditions, with the least share of row groups that their statistics leave out.
CONDITIONS: list[tuple[Any, float]] = [
    ('lang == "en"', 0.6),
    ('score > 0.9 and lang in ["fr", "en"]', 0.85),
    ("n < 3 or n == 3777 or 3900 <= n < 3910", 0.9),
    ('day >= date("2024-02-05") and good', 0.8),
    ("not (n >= 10)", 0.0),
    ('lang != "de" and is_valid(n)', 0.0),
    ((pc.field("n") < 50) & (pc.field("lang") == "de"), 0.95),
    (pc.field("day") < date(2024, 1, 3), 0.0),
    (pc.bit_wise_and(pc.field("n"), 1) == 1, 0.0),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(("condition", "share"), CONDITIONS)
def test_the_rows_that_satisfy_a_condition_are_the_documents(
    condition: Any, share: float, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(TABLE, path, row_group_size=100)
    else:
        with pa.ipc.new_file(path, TABLE.schema) as out:
            out.write_table(TABLE, max_chunksize=100)
    source: Any = sources.open(str(path), text="text", where=condition)
    expression = Predicate(condition)._expression
    expected = TABLE.filter(expression)["text"].to_pylist()
    assert 0 < len(expected) < ROWS
    assert_source_contract(source, expected, lane_counts=[1, 3], restarts=2)
    if ending == "parquet":
        with source.open_shard(0) as file:
            groups, count = pruned_groups(file, source.where)
        assert len(groups) >= share * count


OPERATORS = ("==", "!=", "<", "<=", ">", ">=")


@st.composite
def corpora(draw: st.DrawFn) -> tuple[pa.Table, int, str]:
    rows = draw(st.integers(1, 40))
    numbers = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-(2**53) - 1, 2**53 + 1]))
    floats = st.one_of(st.none(), st.floats(-2, 2), st.sampled_from([math.nan, -0.0, math.inf]))
    words = st.one_of(st.none(), st.sampled_from(["", "a", "é", "z" * 100, "z" * 99 + "é", "人"]))
    column = {"a": (numbers, pa.int64()), "b": (floats, pa.float64()), "c": (words, pa.string())}
    table = pa.table(
        {
            "text": pa.array([f"{n}" for n in range(rows)]),
            **{
                name: pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
                for name, (values, kind) in column.items()
            },
        }
    )

    def compared() -> str:
        name = draw(st.sampled_from("abc"))
        value = draw(column[name][0].filter(lambda v: v is not None and v == v and v != math.inf))
        if name != "c" and draw(st.booleans()):
            value = float(value) if name == "a" and abs(value) < 9 else int(value)
        literal = '"' + value + '"' if isinstance(value, str) else repr(value)
        return f"{name} {draw(st.sampled_from(OPERATORS))} {literal}"

    parts = [compared() for _ in range(draw(st.integers(1, 3)))]
    joined = draw(st.sampled_from([" and ", " or "])).join(parts)
    if draw(st.booleans()):
        joined = f"({joined}) or ({compared()} and not ({compared()}))"
    return table, draw(st.integers(1, 10)), joined


@given(drawn=corpora())
def test_statistics_leave_out_no_row_that_satisfies_a_condition(
    drawn: tuple[pa.Table, int, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table, size, condition = drawn
    path = tmp_path_factory.mktemp("drawn") / "a.parquet"
    pq.write_table(table, path, row_group_size=size)
    expected = table.filter(Predicate(condition)._expression)["text"].to_pylist()
    assert read_all(sources.Parquet(str(path), text="text", where=condition)) == expected


def test_row_groups_that_begin_or_end_with_the_value_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": list("abcdef"), "n": [0, 1, 1, 2, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    for condition in (f"n {operator} {n}" for operator in OPERATORS for n in range(4)):
        expected = table.filter(Predicate(condition)._expression)["text"].to_pylist()
        source = sources.Parquet(str(tmp_path), text="text", where=condition)
        assert (read_all(source) if expected else []) == expected, condition


def test_row_groups_that_do_not_match_are_not_fetched(http: HTTPServer, storage: Storage) -> None:
    rng = np.random.default_rng(0)
    rows = 24_000
    table = pa.table(
        {
            "ids": [rng.integers(0, 50_000, 512).astype(np.int32) for _ in range(rows)],
            "day": np.arange(rows) // 1000,
            "other": [rng.bytes(500) for _ in range(rows)],
        }
    )
    path = http.folder / "a.parquet"
    pq.write_table(table, path, row_group_size=6000, use_dictionary=["day"], compression=None)
    source = sources.Parquet(
        f"{http.url}/a.parquet", tokens="ids", where="day >= 6 and day < 12", storage=storage
    )
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=True)
    assert sum(len(block) for block, _ in lane.read(None, ErrorPolicy())) == 6000
    group = pq.read_metadata(path).row_group(1)
    matching = sum(group.column(n).total_compressed_size for n in (0, 1))
    spans = [r.range.removeprefix("bytes=").split("-") for r in http.requests if r.range]
    fetched = sum(int(last) + 1 - int(first) for first, last in spans)
    assert matching < fetched <= 1.1 * matching


def test_a_run_resumes_under_its_condition_alone(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=100)

    def loader(where: Any) -> PackedLoader:
        source = sources.Parquet(str(tmp_path / "a.parquet"), text="text", where=where)
        dataset = PackedDataset(
            source, seq_len=64, batch_size=2, tokenizer=byte_tokenizer(), lanes=3
        )
        return PackedLoader(dataset)

    run = loader('lang == "en"')
    batches = iter(run)
    for _ in range(5):
        next(batches)
    state, rest = run.state_dict(), [batch.input_ids.tolist() for batch in batches]
    again = loader(pc.field("lang") == "en")
    again.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in again] == rest
    for other in ('lang == "de"', None):
        with pytest.raises(StateError) as caught:
            loader(other).load_state_dict(state)
        assert caught.value.setting in ("source.where", "source.manifest")


def test_explain_tells_which_row_groups_are_left_out(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=100)
    source = sources.Parquet(str(tmp_path / "a.parquet"), text="text", where="n < 1000")
    explained = PackedDataset(source, seq_len=64, tokenizer=byte_tokenizer()).explain()
    (words,) = explained.as_dict()["left_out"]
    assert "30 of 40" in words
    assert words in str(explained)


def test_a_broken_document_that_is_not_wanted_stops_no_run(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "c"], "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_all(sources.Parquet(str(tmp_path), text="text", where="n != 2")) == ["a", "c"]


@pytest.mark.parametrize(
    "condition",
    ["lang >", "lang == 3", "missing == 1", "score", "n + 1 == 2", "n is 3", 7, 'day > "2024"',
     pc.field("score") * 2, "n in []", "__import__('os')"],
)  # fmt: skip
def test_a_value_other_than_a_condition_on_the_columns_is_refused(
    condition: Any, tmp_path: Path
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    with pytest.raises(ConfigError) as caught:
        sources.open(str(tmp_path), text="text", where=condition)
    assert caught.value.setting == "where"


def test_formats_without_columns_take_no_condition(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError) as caught:
        sources.open(str(tmp_path), text="text", where="n == 1")
    assert caught.value.setting == "where"


def test_times_are_compared_with_times(tmp_path: Path) -> None:
    times = [datetime(2024, 1, 1, hour) for hour in range(4)]
    table = pa.table(
        {"text": list("abcd"), "at": times, "zoned": pa.array(times, pa.timestamp("us", "UTC"))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    for condition in (
        'at >= timestamp("2024-01-01T02:00:00")',
        'zoned >= timestamp("2024-01-01T02:00:00+00:00")',
    ):
        assert read_all(sources.Parquet(str(tmp_path), text="text", where=condition)) == ["c", "d"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("condition", "share"),
    [
        ('lang == "05"', 0.7),
        ("year >= 2024 and n < 3500", 0.5),
        ('day == date("2024-01-07") or lang in ["de", "fr"]', 0.2),
        ('not (lang == "de")', 0.0),
        ("is_null(lang)", 0.0),
        ('lang < "zz"', 0.2),
        (pc.field("lang") == "de", 0.7),
    ],
)
def test_columns_of_folders_select_files(
    condition: Any, share: float, ending: str, tmp_path: Path
) -> None:
    rows: list[pa.Table] = []
    for n, lang in enumerate(["05", "de", "fr", None]):
        folder = f"lang={lang or '__HIVE_DEFAULT_PARTITION__'}"
        path = tmp_path / folder / f"year={2023 + n // 2}" / f"day=2024-01-{7 + n:02}"
        path.mkdir(parents=True)
        part = TABLE.slice(1000 * n, 1000).select(["text", "n"])
        (pq.write_table if ending == "parquet" else feather.write_feather)(
            part, path / f"a.{ending}"
        )
        columns = {"lang": pa.array([lang] * 1000, pa.string()), "year": [2023 + n // 2] * 1000}
        columns["day"] = pa.array([date(2024, 1, 7 + n)] * 1000)
        for name, values in columns.items():
            part = part.append_column(name, pa.array(values))
        rows.append(part)
    table = pa.concat_tables(rows)
    source: Any = sources.open(str(tmp_path), text="text", where=condition)
    expected = table.filter(Predicate(condition)._expression)["text"].to_pylist()
    assert sorted(read_all(source)) == sorted(expected)
    if ending == "parquet":
        pruned = 0
        for info in source._files():
            with source.storage.open(info) as file:
                pruned += len(pruned_groups(file, source.where)[0])
        assert pruned / 4 >= share


def test_a_column_of_the_file_counts_before_the_folder(tmp_path: Path) -> None:
    (tmp_path / "lang=de").mkdir()
    pq.write_table(TABLE, tmp_path / "lang=de" / "a.parquet", row_group_size=100)
    source = sources.Parquet(str(tmp_path), text="text", where='lang == "en"')
    assert read_all(source) == TABLE.filter(pc.field("lang") == "en")["text"].to_pylist()
    with pytest.raises(ConfigError) as other:
        sources.Parquet(str(tmp_path), text="text", where="year == 2024").prepare()
    assert other.value.setting == "where"
