from __future__ import annotations

import builtins
import io
import json
import re
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from streampack.cli import main
from streampack.errors import ConfigError
from streampack.sources.files import open_files
from streampack.sources.mds.source import MDS
from streampack.sources.tar.source import WebDataset
from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.program import output_of

pytest.importorskip("matplotlib")


def run(*arguments: object) -> str:
    """The output; the picture is `picture.png` in the working directory."""
    output = output_of("compare", *arguments, "--out", "picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    return output


def ids(mu: float, sigma: float, n: int) -> list[Any]:
    lengths = np.exp(np.random.default_rng(1).normal(mu, sigma, n)).astype(int) + 1
    return [np.full(length, 7, dtype=np.uint16) for length in lengths]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def sizes(*values: int) -> list[object]:
    return [part for value in values for part in ("--seq-len", value)]


def test_chats_and_books_get_different_advice(folder: Path) -> None:
    for name, documents in (("chats", ids(4.0, 0.6, 3000)), ("books", ids(8.6, 0.5, 200))):
        table = pa.table({"ids": pa.array(documents)})
        pq.write_table(table, folder / f"{name}.parquet")
    chats = run(folder / "chats.parquet", "--tokens", "ids", *sizes(512, 2048))
    books = run(folder / "books.parquet", "--tokens", "ids", *sizes(512, 2048))
    assert "Take BestFitDecreasing(seq_len=512)." in chats
    assert "fit a row of 512 tokens" in chats
    assert "Take Seamless(seq_len=2048)." in books
    assert "longer than the longest row tried" in books
    assert "3,000 documents of" in chats


def test_the_table_has_every_strategy_and_fits_80_columns(folder: Path) -> None:
    write_tar(folder / "a.tar", ids(5.0, 1.0, 800))
    output = run(folder, *sizes(512, 1024))
    lines = output.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("all planned"))
    end = next(i for i, line in enumerate(lines) if line.startswith("Take "))
    assert max(map(len, lines[begin:end])) <= 80
    assert "…" not in output
    for name in ("BestFitDecreasing", "FirstFitDecreasing", "Seamless", "BestFitCrop", "Concat"):
        assert sum(line.startswith(f"{name} ") for line in lines[begin:end]) == 2
    assert sum(line.startswith("Buckets ") for line in lines[begin:end]) == 1


def test_the_same_sample_gets_the_same_words(folder: Path) -> None:
    write_mds(folder, ids(5.0, 1.0, 1500), column="tokens")
    first, second = (run(folder / "mds", "--documents", 700, *sizes(512)) for _ in range(2))
    words = [output[output.index("Take ") :] for output in (first, second)]
    assert words[0] == words[1]
    assert first.startswith("700 documents")
    assert re.search(r"A window of \d+ rows is enough", first)
    assert "The sample fills" in first


def test_a_tiny_corpus_and_the_shortest_rows_still_give_a_picture(folder: Path) -> None:
    pq.write_table(pa.table({"ids": pa.array([[1, 2, 3]])}), folder / "a.parquet")
    for size in (2, 2048):
        output = run(folder / "a.parquet", "--tokens", "ids", *sizes(size))
        assert "The sample fills" in output


def test_rows_of_several_lengths_are_recommended_with_their_steps(folder: Path) -> None:
    same = [np.full(40, 7, dtype=np.uint16)] * 600
    pq.write_table(pa.table({"ids": pa.array(same)}), folder / "a.parquet")
    output = run(folder / "a.parquet", "--tokens", "ids", *sizes(64))
    assert "Take Buckets(seq_lens=(16, 32, 64))." in output
    assert "of 8 of the longest rows" in output


def test_groups_of_a_dataset_are_measured_whole(folder: Path) -> None:
    byte_tokenizer().save("tokenizer.json")
    Path("chatml.jinja").write_text(CHATML)
    asked, other = messages("hi", "ab"), messages("hi", "ba")
    pair = {"prompt": asked[:1], "chosen": asked[1:], "rejected": other[1:]}
    write_lines(folder / "pairs.jsonl", [pair] * 50)
    Path("corpus.py").write_text(
        "from streampack import PackedDataset, sources\n"
        "dataset = PackedDataset(\n"
        "    sources.Chat('in/pairs.jsonl', template='chatml.jinja'), seq_len=512,\n"
        "    tokenizer='tokenizer.json', group='group', document_fields={'group': 'int64'},\n"
        ")\n"
        "whole = sum(batch.num_tokens for batch in dataset) // 50\n"
    )
    whole = runpy.run_path("corpus.py")["whole"]
    output = run("corpus.py:dataset", *sizes(64, 512))
    assert output.startswith(f"50 documents of {whole} tokens")
    assert "keeps whole" in output
    assert "tokens/s" in output_of(
        "bench", "corpus.py:dataset", "--seconds", 0.01, "--workers", 0, "--seq-len", 512
    )
    for option in (("--tokenizer", "tokenizer.json"), ("--text", "a")):
        with pytest.raises(ConfigError, match=r"is a PackedDataset.*Leave out --tokenizer"):
            run("corpus.py:dataset", *option)


def test_an_end_of_texts_is_named_by_an_option_as_the_error_says(folder: Path) -> None:
    words = {"[UNK]": 0, "a": 1}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save("tokenizer.json")
    (folder / "a.jsonl").write_text('{"text": "abc"}\n' * 20)
    given = (folder / "a.jsonl", "--tokenizer", "tokenizer.json")
    with pytest.raises(ConfigError, match=r"\(--eos-id\)"):
        run(*given)
    assert "20 documents of 2 tokens" in run(*given, "--eos-id", 1)


def test_the_rows_and_batches_of_a_dataset_are_tried(folder: Path) -> None:
    Path("made.py").write_text(
        "from streampack import PackedDataset\n"
        "dataset = PackedDataset([[1] * 60] * 400, seq_len=64, batch_rows=2)\n"
    )
    said = json.loads(run("made.py:dataset", "--json"))
    assert {length for row in said["strategies"] for length in row["seq_lens"]} <= {16, 32, 64}
    assert 170 <= said["epoch_steps"] <= 200
    assert re.search(r"steps \(within \d+\) of 2 (of the longest )?rows", run("made.py:dataset"))
    said = json.loads(run("made.py:dataset", "--seq-len", 128, "--json"))
    assert max(length for row in said["strategies"] for length in row["seq_lens"]) == 128


def test_as_json_it_says_the_same_by_name(folder: Path) -> None:
    table = pa.table({"ids": pa.array(ids(4.0, 0.6, 3000))})
    pq.write_table(table, folder / "a.parquet")
    options = (folder / "a.parquet", "--tokens", "ids", *sizes(512, 1024))
    said = json.loads(run(*options, "--json"))
    words = run(*options)
    assert said["documents"] == 3000
    assert f"Take {said['recommended']['packer']}." in words
    assert f"An epoch has about {said['epoch_steps']:,} steps" in words
    for reason in said["recommended"]["reasons"]:
        assert reason in words
    assert {tuple(s["seq_lens"]) for s in said["strategies"]} >= {(512,), (1024,)}
    for strategy in said["strategies"]:
        assert f"{100 * strategy['utilisation']:.2f}" in words
    assert said["smallest_window_rows"] in [w["rows"] for w in said["windows"]]


def test_texts_are_counted_in_tokens(folder: Path) -> None:
    texts = ["x" * n for n in range(1, 200)]
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (folder / "txt").mkdir()
    for number, text in enumerate(texts[:20]):
        (folder / "txt" / f"{number:02}.txt").write_text(text)
    tokenizer = ("--tokenizer", folder / "tokenizer.json")
    assert "199 documents of 101 tokens" in run(folder / "a.jsonl", *tokenizer, *sizes(512))
    assert "20 documents of 12 tokens" in run(folder / "txt", *tokenizer, *sizes(512))


def test_conversations_and_mixtures_are_named_in_python_as_the_error_says(folder: Path) -> None:
    byte_tokenizer().save("tokenizer.json")
    Path("chatml.jinja").write_text(CHATML)
    write_lines(
        folder / "chats.jsonl", [{"messages": messages("hi", "ab" * (i + 1))} for i in range(90)]
    )
    given = (*sizes(64), "--tokenizer", "tokenizer.json")
    with pytest.raises(ConfigError) as error:
        run(folder / "chats.jsonl", *given)
    advised = re.search(r"sources\.Chat\('(.*)'\)", str(error.value))
    assert advised
    Path("corpus.py").write_text(
        "from streampack import PackedDataset, packing, sources\n"
        f"chats = {advised[0][:-1]}, template='chatml.jinja')\n"
        "def mixed():\n"
        "    return sources.Mixture({'a': chats, 'b': ['word'] * 90}, weights={'a': 1, 'b': 1})\n"
        "dataset = PackedDataset(\n"
        "    mixed(), packer=packing.Pad(seq_len=64), tokenizer='tokenizer.json'\n"
        ")\n"
    )
    assert run("corpus.py:chats", *given).startswith("90 documents")
    said = [run("corpus.py:mixed", *given), run("corpus.py:dataset", *sizes(64))]
    for found in said:
        assert found.startswith("180 documents")
        assert "Take " in found
    assert said[0].partition("Take ")[2] == said[1].partition("Take ")[2]
    for wrong in ("corpus.py:nothing", "other.py:chats"):
        with pytest.raises(ConfigError, match=wrong.split(":")[0]):
            run(wrong, *given)


def test_flat_files_of_tokens_are_named_by_options(folder: Path) -> None:
    flat = np.tile(np.array([1, 2, 3, 0], dtype=np.uint16), 50)
    flat.tofile(folder / "train.bin")
    options = ("--dtype", "uint16", "--eos-id", "0", *sizes(512))
    assert "50 documents of 4 tokens" in run(folder / "train.bin", *options)
    pq.write_table(pa.table({"ids": [[1, 2], [3, 4]], "url": ["a", "b"]}), folder / "a.parquet")
    assert "2 documents of 2 tokens" in run(folder / "a.parquet", "--column", "ids", *sizes(512))


def test_formats_are_told_by_their_files(folder: Path) -> None:
    write_mds(folder, ids(3.0, 1.0, 5), column="input_ids")
    for path in (folder / "mds", folder / "mds" / "index.json"):
        source = open_files(str(path))
        assert isinstance(source, MDS)
        assert source.column == "input_ids"
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("0.cls", "0.ids.npy", "0.json"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    for options, key in (
        ({}, "ids.npy"),
        ({"key": "txt"}, "txt"),
        ({"tokens": "t"}, "json"),
    ):
        source = open_files(str(folder / "a.tar"), **options)
        assert isinstance(source, WebDataset)
        assert source.key == key


def test_a_source_that_cannot_be_told_is_refused_in_words(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "b.txt").write_text("b")
    (folder / "c.csv").write_text("c")
    with tarfile.open(folder / "d.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("0.pkl"), io.BytesIO())
    (folder / "e.tar").write_text("not an archive")
    for path, options, words in (
        ("*.[jt]*", {}, "3 kinds"),
        ("c.csv", {}, "pandas.read_csv(path)"),
        ("missing", {}, "missing"),
        ("d.tar", {}, "--key"),
        ("e.tar", {}, "--key"),
        ("d.tar", {"text": "a", "tokens": "b"}, "Both text"),
        ("a.jsonl", {"key": "npy"}, "Leave key out (--key"),
        ("a.jsonl", {"column": "x", "key": "npy"}, "Leave key out (--key"),
        ("b.txt", {"text": "x"}, "read by TextFiles"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            open_files(str(folder / path), **options)


def test_mds_columns_of_unknown_names_must_be_named(folder: Path) -> None:
    from tests.support.mosaic import streaming_module

    with streaming_module("base.format.mds") as mds:
        columns = {"a": "str", "b": "str"}
        with mds.MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
            writer.write({"a": "x", "b": "y"})
    with pytest.raises(ConfigError, match="--column"):
        open_files(str(folder / "mds"))
    assert isinstance(open_files(str(folder / "mds"), column="b"), MDS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["in/a.jsonl"], "--tokens NAME, if a field"),
        (["in/a.jsonl", "--tokens", "text", "--seq-len", "1"], "seq_len is 1"),
        (["in/a.jsonl", "--out", "a.bmp"], "a.bmp"),
        (["in/a.jsonl", "--out", "none/a.png"], "none/a.png"),
        (["in/empty.parquet", "--tokens", "ids"], "no document"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_1(
    folder: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(
        pa.table({"ids": pa.array([[]], pa.list_(pa.int32()))}), folder / "empty.parquet"
    )
    monkeypatch.setattr(sys, "argv", ["streampack", "compare", *arguments])
    with pytest.raises(SystemExit) as error:
        main()
    said = str(error.value.code)  # Python prints it on standard error and exits with 1
    assert said.startswith("streampack: ")
    assert words in said
    assert len(said.splitlines()) == 1
    assert not Path("compare.png").exists()


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "matplotlib":
            raise ImportError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"needs matplotlib.*streampack\[cli\]"):
        run("anything.jsonl")
