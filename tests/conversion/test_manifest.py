"""The manifest beside the shards: counts, the steps of a run, and another tokenizer is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers

from streampack import Hook, PackedDataset, PackedLoader, Tokenizer, TokenRules
from streampack.conversion import convert as module
from streampack.conversion.convert import convert_source
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.files.converted import MANIFEST, converted_tokens
from streampack.sources.resolve import open as open_source
from tests.support.conversions import content, conversion, documents_in, write_lines


def words(count: int) -> Tokenizer:
    engine = Engine(models.WordLevel({f"w{i}": i for i in range(count)} | {"</s>": count}))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(engine, eos_id=count)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    rng = np.random.default_rng(8)
    lengths = np.exp(rng.normal(2.5, 1.0, 8000)).astype(int)
    rows = (" ".join(f"w{i}" for i in rng.integers(0, 90, length)) for length in lengths)
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def shards(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards")
    job = Conversion(
        source=open_source(texts), destination=Destination(str(out)), tokenizer=words(90),
        shard_bytes=20_000, part_bytes=50_000,
    )  # fmt: skip
    convert_source(job, workers=1)
    return out


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return found


def test_the_manifest_counts_every_part_and_shard(shards: Path) -> None:
    manifest = read(shards)
    counted = [shard for part in manifest["parts"] for shard in part["shards"]]
    tables = {path.name: pq.read_table(path)["tokens"] for path in shards.glob("*.parquet")}
    assert [part["part"] for part in manifest["parts"]] == [*range(manifest["num_parts"])]
    assert {name for name, *_ in counted} == {*tables}
    for name, num_bytes, documents, tokens, loss_tokens, _ in counted:
        assert num_bytes == (shards / name).stat().st_size
        assert documents == len(tables[name])
        assert tokens == loss_tokens == len(pyarrow.compute.list_flatten(tables[name]))
    assert manifest["documents"] == 8000
    assert manifest["tokens"] == sum(shard[3] for shard in counted)
    assert manifest["tokenizer"]["vocab_size"] == 91


def test_loss_tokens_are_the_tokens_with_loss(tmp_path: Path) -> None:
    rows = [{"ids": [1, 2, 3, 4], "mask": [0, 0, 1, 1]}, {"ids": [5, 6], "mask": [0, 1]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(tmp_path / "a.jsonl", tokens="ids", loss_mask="mask")
    job = Conversion(source=source, destination=Destination(str(tmp_path / "out")))
    done = convert_source(job, workers=1)
    assert (done.tokens, done.loss_tokens) == (6, 3)
    assert read(tmp_path / "out")["parts"][0]["shards"][0][2:5] == [2, 6, 3]


def test_an_estimate_of_steps_takes_the_tokens_from_the_manifest(
    shards: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in shards.glob("*.parquet"):
        (bare / path.name).write_bytes(path.read_bytes())
    datasets = [
        PackedDataset(folder, seq_len=32, batch_size=4, lanes=2, epochs=1)
        for folder in (shards, bare)
    ]
    exact, sampled = (dataset.estimate_steps() for dataset in datasets)
    assert exact is not None
    assert sampled is not None
    steps = sum(1 for _ in PackedLoader(datasets[0]))
    assert abs(exact.steps - steps) <= exact.error
    assert exact.error < sampled.error
    assert converted_tokens(open_source(shards)) == read(shards)["tokens"]
    assert converted_tokens(open_source(bare)) is None


def test_a_filter_or_other_shards_need_a_sample(shards: Path, tmp_path: Path) -> None:
    half = PackedDataset(
        shards, seq_len=32, batch_size=4, lanes=2, epochs=1,
        filter=Hook("even", lambda documents, seeds: documents.lengths % 2 == 0),
    )  # fmt: skip
    whole = PackedDataset(shards, seq_len=32, batch_size=4, lanes=2, epochs=1)
    estimates = [dataset.estimate_steps() for dataset in (half, whole)]
    assert estimates[0] is not None
    assert estimates[1] is not None
    assert estimates[0].steps < 0.8 * estimates[1].steps
    folder = tmp_path / "changed"
    folder.mkdir()
    for path in shards.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    pq.write_table(pa.table({"tokens": [[1, 2, 3]]}), folder / "part-00000-00000.parquet")
    assert converted_tokens(open_source(folder)) is None


def test_another_tokenizer_is_refused_and_other_rules_of_the_same_are_not(shards: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        PackedDataset(shards, seq_len=32, tokenizer=words(80))
    assert caught.value.setting == "tokenizer"
    rules = TokenRules(eos="as-is", special_tokens_in_text="split")
    engine = words(90)._engine
    dataset = PackedDataset(shards, seq_len=32, epochs=1, tokenizer=engine, token_rules=rules)
    assert sum(1 for _ in PackedLoader(dataset)) > 100


def test_a_command_that_is_killed_while_it_ends_is_ended_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    lines = write_lines(tmp_path / "in")
    convert_source(conversion(lines, tmp_path / "whole"), workers=1)

    class StopError(Exception):
        pass

    remove = Destination.remove
    for count in (0, 5):  # notes that are removed before the kill
        out = tmp_path / f"out-{count}"

        def stopped(self: Destination, *names: str, count: int = count) -> None:
            remove(self, *names[:count])
            raise StopError

        with monkeypatch.context() as patch:
            patch.setattr(Destination, "remove", stopped)
            with pytest.raises(StopError):
                convert_source(conversion(lines, out), workers=1)
        with pytest.raises(ConfigError):
            open_source(out)
        with monkeypatch.context() as patch:
            patch.setattr(module, "convert_part", None)  # no part is converted twice
            convert_source(conversion(lines, out), workers=1)
        assert content(out) == content(tmp_path / "whole")
        assert read(out)["documents"] == len(documents_in(lines))
