"""Kept fields lie in the shards beside their documents, as texts and numbers of their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streampack
from streampack import PackedDataset, PackedLoader, sources
from streampack.errors import ConfigError, ContentError
from tests.support.columns import KINDS, write_lines, write_parquet
from tests.support.corpora import write_samples
from tests.support.program import output_of
from tests.support.vocabularies import trained

NUMBER = 60
COLUMNS = {
    "text": [f"document {n} " * (1 + n % 5) for n in range(NUMBER)],
    "url": [f"https://exämple.org/{n}" for n in range(NUMBER)],
    "language": ["de" if n % 3 else "en" for n in range(NUMBER)],
    "score": [n / 8 for n in range(NUMBER)],
    "id": [2**53 + 1 + n for n in range(NUMBER)],
}
KEPT = ["url", "language", "score", "id"]
SMALL = {"part_bytes": 2_000, "shard_bytes": 1_000}


def shards(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("streaming", "generator")])
def test_every_format_keeps_texts_and_numbers_beside_the_documents(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = KINDS[kind](COLUMNS)
    streampack.convert(data, "out", text="text", keep=KEPT, workers=1, **SMALL)
    assert shards(tmp_path / "out").to_pydict() == COLUMNS


def test_json_in_tars_keeps_its_fields(tmp_path: Path) -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    path = write_samples(tmp_path / "a.tar", [{"json": json.dumps(row).encode()} for row in rows])
    streampack.convert(
        str(path), str(tmp_path / "out"), text="json:text", keep=KEPT, workers=1, **SMALL
    )
    assert shards(tmp_path / "out").to_pydict() == COLUMNS


def test_training_on_the_shards_has_the_fields_that_training_on_the_source_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines, tokenizer = write_lines(COLUMNS), trained(None)
    for out, workers in (("one", 1), ("two", 2)):
        streampack.convert(
            lines, out, tokenizer=tokenizer, eos_id=0, keep=KEPT, workers=workers, **SMALL
        )
    assert len([*Path("one").glob("*.parquet")]) > 4
    names = {path.name for path in Path("one").iterdir()} - {".streampack"}
    assert all(Path("one", n).read_bytes() == Path("two", n).read_bytes() for n in names)

    def batches(source: Any) -> list[Any]:
        dataset = PackedDataset(
            source, seq_len=64, batch_size=2, lanes=1, shuffle=False, epochs=1,
            tokenizer=tokenizer, token_rules=streampack.TokenRules(eos_id=0),
            document_fields={"url": "text", "language": "text", "score": "float64", "id": "int64"},
        )  # fmt: skip
        return [
            (b.input_ids.tolist(), {name: v.tolist() for name, v in b.document_fields.items()})
            for b in PackedLoader(dataset)
        ]

    found = batches("one")
    assert found == batches(lines)
    assert {n for _, fields in found for n in fields["id"]} == {*COLUMNS["id"]}


def test_the_command_keeps_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = write_lines(COLUMNS)
    output_of("convert", lines, tmp_path / "out", "--keep", "url,score:float32", "--workers", 1)
    table = shards(tmp_path / "out")
    assert table.column_names == ["text", "url", "score"]
    assert table["url"].to_pylist() == COLUMNS["url"]
    assert table["score"].type == pa.float32()


def test_fields_of_conversations_are_kept(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"},
                      {"role": "assistant", "content": "yes " * n}], "origin": f"site {n % 3}"}
        for n in range(1, 40)
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"  # noqa: E501
    chats = sources.Chat(str(tmp_path / "a.jsonl"), template=template)
    streampack.convert(
        chats, str(tmp_path / "out"), tokenizer=trained(None), eos_id=0, keep=["origin"], workers=1
    )
    table = shards(tmp_path / "out")
    assert table["origin"].to_pylist() == [row["origin"] for row in rows]
    assert any(0 in mask for mask in table["loss_mask"].to_pylist())


def test_two_sources_keep_one_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = write_parquet(
        pa.table({"text": ["a", "b"], "n": pa.array([1, 2], pa.int32())}), "a.parquet"
    )  # type: ignore[arg-type]
    second = write_lines({"text": ["c"], "n": [0.5]})
    third = write_lines({"text": ["d"], "n": ["five"]}, "b.jsonl")
    opened = [sources.open(name) for name in (first, second, third)]
    streampack.convert(opened[:2], "out", keep=["n"], workers=1)
    assert shards(Path("out"))["n"].to_pylist() == [1.0, 2.0, 0.5]
    with pytest.raises(ConfigError) as caught:
        streampack.convert(opened, "other", keep=["n"], workers=1)
    assert caught.value.setting == "keep"


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_values_of_another_type_are_broken_documents(tmp_path: Path, on_error: Any) -> None:
    values = [*range(2_000), 0.5, "x", None]
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        "".join(json.dumps({"text": f"t{i}", "n": n}) + "\n" for i, n in enumerate(values))
    )

    def convert(out: str, *keep: str) -> streampack.conversion.convert.Progress:
        return streampack.convert(
            str(lines), str(tmp_path / out), keep=keep, workers=1, on_error=on_error
        )

    if on_error == "raise":
        with pytest.raises(ContentError) as caught:
            convert("out", "n")
        assert caught.value.document is not None
        return
    assert convert("out", "n").skipped == 3
    assert shards(tmp_path / "out")["n"].to_pylist() == values[:-3]
    assert convert("floats", "n:float64").skipped == 2
    assert shards(tmp_path / "floats")["n"].to_pylist() == values[:-2]


def test_a_text_that_is_not_unicode_is_a_broken_document(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a", "url": "x"}\n{"text": "b", "url": "\\ud800"}\n')
    done = streampack.convert(
        str(lines), str(tmp_path / "out"), keep=["url"], workers=1, on_error="skip"
    )
    assert (done.documents, done.skipped) == (1, 1)
    with pytest.raises(ContentError) as caught:
        streampack.convert(str(lines), str(tmp_path / "other"), keep=["url"], workers=1)
    assert caught.value.document is not None


@pytest.mark.parametrize("keep", ["url", ["urls"], ["text"], ["labels"], ["tokens"], [1], ["list"]])
def test_fields_that_cannot_be_kept_are_refused(tmp_path: Path, keep: Any) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps({"text": "a", "url": "b", "list": [1]}) + "\n")
    with pytest.raises(ConfigError) as caught:
        streampack.convert(str(lines), str(tmp_path / "out"), text="text", keep=keep, workers=1)
    assert caught.value.setting == "keep"


def test_another_choice_of_fields_is_another_conversion(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    rows = [{"text": f"text {n}", "url": f"u{n}", "n": n} for n in range(100)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def convert(*keep: str, report: Any = lambda _: None) -> Any:
        return streampack.convert(
            str(lines), str(tmp_path / "out"), keep=keep, workers=1, part_bytes=500, report=report
        )

    def stop(progress: Any) -> None:
        if progress.parts == 2:
            raise KeyError

    with pytest.raises(KeyError):
        convert("url", report=stop)
    for other in ([], ["url", "n"]):
        with pytest.raises(ConfigError):
            convert(*other)
    convert("url")
    assert shards(tmp_path / "out").to_pydict() == {
        "text": [row["text"] for row in rows],
        "url": [row["url"] for row in rows],
    }
