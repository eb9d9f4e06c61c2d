"""What cannot work is refused by a sentence, and what fails leaves what can be gone on with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.corpus_order import CorpusOrder, run_job
from streampack.corpus_order.job import STAGES
from streampack.errors import ConfigError
from streampack.ordering import TextEmbedder, TokenEmbedder
from tests.support.ordered_corpora import make_job, shards_of, write_parquet, write_topics
from tests.support.program import output_of
from tests.support.servers import s3_server


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "in", count=120)


def refused(job: CorpusOrder, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_job(job, workers=0)


def embedder(change: Callable[[np.ndarray], Any]) -> TokenEmbedder:
    def embed(documents: Any) -> Any:
        sums = [documents.document(i).astype(float).sum() for i in range(len(documents))]
        return change(np.stack([sums, np.ones(len(sums))], axis=1))

    return TokenEmbedder("own", embed)


def test_vectors_that_are_not_finite_are_refused_by_the_name_of_the_document(
    corpus: Path, tmp_path: Path
) -> None:
    def broken(vectors: np.ndarray) -> np.ndarray:
        vectors[5] = np.nan
        return vectors

    refused(make_job(corpus, tmp_path / "out", embedder=embedder(broken)), r"row 5 of .*0\.parquet")


def test_an_embedder_of_texts_sees_the_first_words(tmp_path: Path) -> None:
    seen: list[str] = []

    def embed(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return np.array([[len(text), 1.0] for text in texts])

    texts = ["one two, three four", "", "eins", "  zwei  drei vier fünf"]
    source = write_parquet(tmp_path / "in", texts)
    job = make_job(
        source, tmp_path / "out", embedder=TextEmbedder("own", embed), first_tokens=3, parts=1
    )
    run_job(job, workers=0)
    assert seen == ["one two,", "", "eins", "  zwei  drei vier"]


def test_a_destination_that_is_not_empty_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other.txt").write_text("mine")
    refused(make_job(corpus, tmp_path / "out"), "no unfinished order")
    run_job(make_job(corpus, tmp_path / "done"), workers=0)
    refused(make_job(corpus, tmp_path / "done"), "no unfinished order")


def test_a_url_needs_a_folder_for_the_stages_and_goes_on_there(
    corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("moto")
    with s3_server() as server:
        url = f"s3://{server.bucket}/in/order"
        with pytest.raises(ConfigError, match="--work"):
            make_job(corpus, url)
        work = str(tmp_path / "work")
        stopped(make_job(corpus, url, work=work))
        run_job(make_job(corpus, url, work=work), workers=0)
        run_job(make_job(corpus, tmp_path / "local"), workers=0)
        listed = server.client.list_objects_v2(Bucket=server.bucket, Prefix="in/order/")["Contents"]
        found = {
            item["Key"].removeprefix("in/order/"): server.client.get_object(
                Bucket=server.bucket, Key=item["Key"]
            )["Body"].read()
            for item in listed
        }
    del found["_order/summary.json"]
    assert found == shards_of(tmp_path / "local")
    assert not list((tmp_path / "work").rglob("*.npy"))


class StopError(Exception):
    pass


def stopped(job: CorpusOrder) -> None:
    def report(stage: str, done: int, total: int) -> None:
        if stage == "search":
            raise StopError

    with pytest.raises(StopError):
        run_job(job, workers=0, report=report)


@pytest.mark.parametrize(
    ("name", "value"), [("k", 3), ("shard_bytes", 9), ("parts", 2), ("search", "faiss")]
)
def test_another_job_does_not_go_on_with_an_unfinished_one(
    corpus: Path, tmp_path: Path, name: str, value: Any
) -> None:
    stopped(make_job(corpus, tmp_path / "out"))
    refused(make_job(corpus, tmp_path / "out", **{name: value}), f"unfinished order with {name}")


FULL = """
import subprocess, sys
from pathlib import Path
from streampack.corpus_order import run_job
from streampack.corpus_order.job import STAGES
from streampack.errors import StorageError
from tests.support.ordered_corpora import make_job, shards_of

corpus, disk = map(Path, sys.argv[1:])
mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk])
if mounted.returncode:
    sys.exit(77)
out, filler = disk / "out", disk / "filler"

def fill():
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

def run(stage, done):
    def report(*event):
        if event[:2] == (stage, done) and not filler.exists():
            fill()
    run_job(make_job(corpus, out, search="faiss"), workers=0, report=report)

for stage in ("", *STAGES):
    for done in (0, 1):
        if not stage:
            fill()
        try:
            run(stage, done)
            print(stage, done, "ended well")
        except StorageError as error:
            print(stage, done, error)
        filler.unlink()
run("", 0)
run_job(make_job(corpus, disk / "whole", search="faiss"), workers=0)
print("the same" if shards_of(out) == shards_of(disk / "whole") else "others")
"""


@pytest.mark.slow
def test_on_a_full_disk_every_stage_stops_by_name_and_goes_on_when_there_is_room(
    corpus: Path, tmp_path: Path
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("only Linux lets a user mount a disk of its own")
    run = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FULL, str(corpus), str(tmp_path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if run.returncode == 77 or "unshare:" in run.stderr:
        pytest.skip("this machine lets no user mount a disk")
    *stopped, last = run.stdout.splitlines()
    assert last == "the same", run.stdout + run.stderr
    assert len(stopped) == 2 * (1 + len(STAGES))
    for line in stopped:
        assert re.search(r"^\w* [01] /.*/out.* cannot be written: No space left", line)
        assert "Make room" in line


def test_ids_with_labels_are_ordered_only_where_they_are_left_out(tmp_path: Path) -> None:
    ids = [list(range(i, i + 40)) for i in range(60)]
    table = pa.table({"input_ids": ids, "labels": ids})
    pq.write_table(table, tmp_path / "a.parquet")
    order = ["order", tmp_path / "a.parquet", tmp_path / "out", "--workers", "0"]
    for named in ([], ["--tokens", "input_ids"]):
        with pytest.raises(ConfigError, match=r'masks would be lost.*--loss-mask ""'):
            output_of(*order, *named)
    output_of(*order, "--tokens", "input_ids", "--loss-mask", "")
    assert list((tmp_path / "out").glob("*.parquet"))
