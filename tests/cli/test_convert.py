from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streampack.cli.app import app
from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.documents.blocks import Documents, Texts, make_origin
from streampack.errors import ConfigError, ContentError, StreampackError
from streampack.formats.jsonl import JSONL
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import open as open_source
from streampack.tokenization import Tokenizer, load_tokenizer
from tests.support.corpora import byte_tokenizer
from tests.support.drawn import sampled
from tests.support.forked import Host
from tests.support.program import output_of
from tests.support.servers import S3Server


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(byte_tokenizer())


def corpus(n: int = 300) -> list[str]:
    rng = np.random.default_rng(5)
    lengths = np.exp(rng.normal(3.0, 1.2, n)).astype(int)
    words = np.array(["alpha", "beta", "gamma", "delta", "é", "人", "x = 1\n", "</s>"])
    return [" ".join(words[rng.integers(0, len(words), length)]) for length in lengths]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    texts = corpus()
    for part in range(3):
        rows = [json.dumps({"text": text, "n": i}) for i, text in enumerate(texts[part::3])]
        (folder / f"part-{part}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def in_order(texts: list[str]) -> list[str]:
    return [text for part in range(3) for text in texts[part::3]]


def run(*arguments: object) -> str:
    return output_of("convert", *arguments)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def opened(folder: Path, **columns: str) -> Any:
    return open_source(folder, reading=ReadOptions(open_shards=1), **columns)


def read_back(source: Any) -> list[Any]:
    (reader,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    found: list[Any] = []
    for block, _ in reader.read(None, ErrorPolicy()):
        if isinstance(block, Documents):
            found += [block.document(i).tolist() for i in range(len(block))]
        else:
            found += list(block.texts)
    return found


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    block = Texts(texts, make_origin(0, np.arange(len(texts), dtype=np.int64)))
    documents = tokenizer.encode(block, ErrorPolicy())
    return [documents.document(i).tolist() for i in range(len(documents))]


def wide_vocabulary(folder: Path) -> Path:
    """One id per byte, of which each needs 32 bits."""
    described = json.loads(byte_tokenizer().to_str())
    model, added = described["model"], described["added_tokens"]
    model["vocab"] = {symbol: 70_000 + i for symbol, i in model["vocab"].items()}
    model["vocab"].update((f"unused {i}", i) for i in range(70_000))
    added[0]["id"] += 70_000
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder / "tokenizer.json"


def test_json_lines_become_shards_of_token_ids(lines: Path, tmp_path: Path) -> None:
    tokenizer = wide_vocabulary(tmp_path)
    options = ("--tokenizer", tokenizer, "--shard-size", "20KB")
    options += ("--compression", "zstd", "--workers", "1")
    output = run(lines, tmp_path / "out", *options)
    assert re.search(r"300\s+documents", output)
    assert "\x1b" not in output  # no bar where there is no terminal
    names = sorted(content(tmp_path / "out").keys() - {"_conversion.json"})
    assert names[:2] == ["part-00000-00000.parquet", "part-00000-00001.parquet"]
    assert len(names) > 4
    assert pq.read_schema(tmp_path / "out" / names[0]).field("tokens").type == pa.large_list(
        pa.uint32()
    )
    assert read_back(opened(tmp_path / "out", tokens="tokens")) == ids_of(
        load_tokenizer(tokenizer), in_order(corpus())
    )


def test_text_stays_text_without_a_tokenizer(tmp_path: Path) -> None:
    texts = corpus(40)
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    for i, text in enumerate(texts):
        folder = tmp_path / "in" / ("deeper" if i >= 20 else "a")
        folder.mkdir(exist_ok=True)
        (folder / f"{i:03}.txt").write_text(text)
    run(tmp_path / "in", tmp_path / "out", "--shard-size", "2KiB")
    assert len(content(tmp_path / "out")) > 2
    assert read_back(opened(tmp_path / "out", text="text")) == texts


def test_token_columns_keep_their_ids(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [65535, 0], [7] * 50]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    for dtype in ("uint16", "uint32"):
        out = tmp_path / dtype
        run(tmp_path / "in.jsonl", out, "--tokens", "ids", "--dtype", dtype)
        assert pq.read_table(out)["tokens"].to_pylist() == rows
        assert str(pq.read_table(out)["tokens"].type.value_type) == dtype
    (tmp_path / "in.jsonl").write_text(json.dumps({"ids": [65536]}))
    with pytest.raises(StreampackError):
        run(tmp_path / "in.jsonl", tmp_path / "x", "--tokens", "ids", "--dtype", "uint16")


def test_groups_are_refused_and_not_joined(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"ids": [[1, 2, 3], [4, 5]]}))
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "in.jsonl", tmp_path / "out", "--tokens", "ids")
    assert caught.value.setting == "source"


@pytest.mark.parametrize("name", ["labels", "mask"])
def test_loss_masks_stay_with_their_ids(tmp_path: Path, name: str) -> None:
    ids = [[11, 12, 13, 14], [21, 22], [31, 32, 33]] * 20
    learnt = [[0, 0, 1, 1], [0, 1], [0, 1, 0]] * 20
    masks = learnt
    if name == "labels":
        rows = zip(ids, learnt, strict=True)
        masks = [[i if on else -100 for i, on in zip(*row, strict=True)] for row in rows]
    table = pa.table({"input_ids": pa.array(ids, pa.list_(pa.uint16())), name: masks})
    pq.write_table(table, tmp_path / "a.parquet")
    source, out = tmp_path / "a.parquet", tmp_path / "out"
    options = ["--tokens", "input_ids", "--shard-size", "2kB"]
    if name == "mask":
        options += ["--loss-mask", name]
    run(source, out, *options)
    (lane,) = open_source(out).lanes(1, seed=0, epoch=0, shuffle=False)
    found = []
    for block, _ in lane.read(None, ErrorPolicy()):
        for i in range(len(block)):
            own = slice(*block.offsets[i : i + 2].tolist())
            found.append((block.tokens[own].tolist(), block.loss_mask[own].astype(int).tolist()))
    assert sorted(found) == sorted(zip(ids, learnt, strict=True))
    run(source, tmp_path / "all", *options[:4], "--loss-mask", "")
    (lane,) = open_source(tmp_path / "all").lanes(1, seed=0, epoch=0, shuffle=False)
    assert all(block.loss_mask is None for block, _ in lane.read(None, ErrorPolicy()))


class StopError(Exception):
    pass


@pytest.mark.sampled
def test_stopped_after_any_part_it_goes_on_to_the_same_bytes(
    lines: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    def conversion(folder: Path) -> Conversion:
        return Conversion(
            source=JSONL(lines, reading=ReadOptions(open_shards=1, block_documents=23)),
            destination=Destination(str(folder)),
            tokenizer=tokenizer,
            shard_bytes=6_000,
            part_bytes=10_000,
        )

    whole = convert_source(conversion(tmp_path / "whole"), workers=1)
    assert whole.shards > whole.parts > 4
    for stop in sampled(range(whole.parts)):
        folder = tmp_path / f"stopped-{stop}"

        def report(progress: Progress, stop: int = stop) -> None:
            if progress.parts == stop:
                raise StopError

        with pytest.raises(StopError):
            convert_source(conversion(folder), workers=1, report=report)
        with pytest.raises(ConfigError) as caught:
            open_source(folder)
        assert caught.value.path == str(folder)
        assert convert_source(conversion(folder), workers=1) == whole
        assert content(folder) == content(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
from streampack.conversion.shards import Destination
from streampack.cli.app import app

put, left = Destination.put, int(sys.argv[1])

def killed_put(self, file, name):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, file, name)

Destination.put = killed_put
app(sys.argv[2:])
"""


def test_killed_between_any_two_files_it_goes_on_to_the_same_bytes(
    host: Host, lines: Path, tmp_path: Path
) -> None:
    options = ("--shard-size", "30KB", "--compression", "zstd", "--part-size", "20KB")
    options += ("--workers", "1")
    run(lines, tmp_path / "whole", *options)
    command = ["convert", str(lines), str(tmp_path / "killed"), *options]
    (tmp_path / "killed.py").write_text(KILLED)
    modules = ["streampack.cli.app"]
    statuses, output = host.run(tmp_path / "killed.py", 2, *command, modules=modules)
    assert statuses == [-signal.SIGKILL], output
    run(*command[1:])
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_shards_go_to_an_object_store_and_a_stopped_run_goes_on(
    lines: Path, tmp_path: Path, s3: S3Server
) -> None:
    def conversion(url: str) -> Conversion:
        return Conversion(
            source=JSONL(lines, reading=ReadOptions(open_shards=1)),
            destination=Destination(url),
            shard_bytes=15_000,
            part_bytes=20_000,
        )

    def stop(progress: Progress) -> None:
        if progress.parts == 2:
            raise StopError

    url = f"s3://{s3.bucket}/deep/er"
    with pytest.raises(StopError):
        convert_source(conversion(url), workers=1, report=stop)
    with pytest.raises(ConfigError) as caught:
        open_source(f"{url}/*.parquet")
    assert caught.value.path == url
    convert_source(conversion(url), workers=2)
    convert_source(conversion(str(tmp_path / "local")), workers=1)
    listed = s3.client.list_objects_v2(Bucket=s3.bucket, Prefix="deep/er/")["Contents"]
    found = {
        item["Key"].removeprefix("deep/er/"): s3.client.get_object(
            Bucket=s3.bucket, Key=item["Key"]
        )["Body"].read()
        for item in listed
    }
    assert found == content(tmp_path / "local")
    assert convert_source(conversion(url), workers=1).parts > 0  # nothing is left


def test_broken_documents_stop_it_or_are_left_out_also_over_a_restart(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [json.dumps({"text": f"document {i} " * 20}) for i in range(30)]
    rows[4] = "{"
    rows[21] = json.dumps({"text": "\ud800"})
    (tmp_path / "in.jsonl").write_text("\n".join(rows))

    def conversion(name: str) -> Conversion:
        return Conversion(
            source=JSONL(tmp_path / "in.jsonl", reading=ReadOptions(block_documents=7)),
            destination=Destination(str(tmp_path / name)),
            tokenizer=tokenizer,
            shard_bytes=2_000,
            part_bytes=3_000,
            on_error="raise" if name == "raise" else "skip",
        )

    with pytest.raises(ContentError):
        convert_source(conversion("raise"), workers=1)
    caplog.clear()
    whole = convert_source(conversion("whole"), workers=1)
    assert (whole.documents, whole.skipped) == (28, 2)
    named = [record.getMessage() for record in caplog.records if "skipped" in record.msg]
    assert len(named) == 2
    assert all("in.jsonl" in message for message in named)
    for stop in range(1, whole.parts):

        def report(progress: Progress, stop: int = stop) -> None:
            if progress.parts == stop:
                raise StopError

        with pytest.raises(StopError):
            convert_source(conversion(f"stop-{stop}"), workers=1, report=report)
        assert convert_source(conversion(f"stop-{stop}"), workers=1) == whole
        assert content(tmp_path / f"stop-{stop}") == content(tmp_path / "whole")


def test_a_file_is_refused_as_destination(lines: Path) -> None:
    file = min(lines.iterdir())
    before = file.read_bytes()
    result = CliRunner().invoke(app, ["convert", str(lines), str(file)])
    assert isinstance(result.exception, ConfigError)
    assert "is a file" in str(result.exception)
    assert file.read_bytes() == before


def test_the_lines_that_it_prints_read_the_result(lines: Path, tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    options = ("--tokenizer", tmp_path / "tokenizer.json", "--workers", "1")
    output = run(lines, tmp_path / "out", *options)
    printed = [line for line in output.splitlines() if "PackedDataset" in line]
    assert len(printed) == 2
    names: dict[str, Any] = {}
    exec("\n".join(printed), names)
    (lane,) = names["dataset"].plan.config.source.lanes(1, seed=0, epoch=0, shuffle=False)
    assert sum(len(block) for block, _ in lane.read(None, ErrorPolicy())) == 300


def test_several_sources_are_converted_one_after_another(lines: Path, tmp_path: Path) -> None:
    files = [tmp_path / "b.parquet", lines / "part-1.jsonl", lines / "part-0.jsonl"]
    pq.write_table(pa.table({"text": ["first", "second"]}), files[0])
    run(*files, tmp_path / "out", "--part-size", "4kB", "--workers", 1)
    texts = corpus()
    assert read_back(opened(tmp_path / "out")) == ["first", "second", *texts[1::3], *texts[0::3]]
    pq.write_table(pa.table({"tokens": [[1, 2]]}), tmp_path / "ids.parquet")
    with pytest.raises(ConfigError) as caught:
        run(*files, tmp_path / "ids.parquet", tmp_path / "other")
    assert caught.value.setting == "source"
