"""Unusable input is refused with its cause, and a run that fails can be continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.conversion.shards import Destination
from streampack.corpus_order import CorpusOrder, run_job
from streampack.corpus_order.embed import copy_part, embed_part
from streampack.errors import ConfigError
from streampack.ordering import TextEmbedder, TokenEmbedder
from tests.support.ordered_corpora import make_job, shards_of, write_parquet, write_topics
from tests.support.program import output_of
from tests.support.servers import s3_server


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "in", count=120)


def assert_refused(job: CorpusOrder, words: str | None = None) -> None:
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

    assert_refused(
        make_job(corpus, tmp_path / "out", embedder=embedder(broken)), r"row 5 of .*0\.parquet"
    )


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
    assert_refused(make_job(corpus, tmp_path / "out"))
    run_job(make_job(corpus, tmp_path / "done"), workers=0)
    assert_refused(make_job(corpus, tmp_path / "done"))
    stopped(make_job(corpus, tmp_path / "stopped"))
    assert_refused(make_job(corpus, tmp_path / "stopped", k=3))  # another job is not gone on with


@pytest.mark.slow
def test_a_url_needs_a_folder_for_the_stages_and_goes_on_there(
    corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("moto")
    with s3_server() as server:
        url = f"s3://{server.bucket}/in/order"
        with pytest.raises(ConfigError):
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


def test_a_job_that_was_stopped_while_it_wrote_to_a_url_goes_on_to_no_other_one(
    corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("moto")
    work = str(tmp_path / "work")
    with s3_server() as server:
        url = f"s3://{server.bucket}"
        stopped(make_job(corpus, f"{url}/one", work=work), "write", 3)
        with pytest.raises(ConfigError) as caught:
            run_job(make_job(corpus, f"{url}/other", work=work), workers=0)
        assert caught.value.setting == "destination"
        assert not Destination(f"{url}/other").names()


def test_a_shard_that_was_removed_from_the_destination_is_rewritten(
    corpus: Path, tmp_path: Path
) -> None:
    job, whole = make_job(corpus, tmp_path / "out"), tmp_path / "whole"
    stopped(job, "write", 3)
    (tmp_path / "out" / "part-00001.parquet").unlink()
    run_job(make_job(corpus, tmp_path / "out"), workers=0)
    run_job(make_job(corpus, whole), workers=0)
    assert shards_of(tmp_path / "out") == shards_of(whole)


def test_leftovers_of_another_job_on_a_lost_machine_are_not_taken(
    corpus: Path, tmp_path: Path
) -> None:
    job = make_job(corpus, tmp_path / "out")
    other = make_job(corpus, tmp_path / "out", first_tokens=3)
    copy_part(other, 1)
    embed_part(other, 1)  # and no settings are noted
    run_job(job, workers=0)
    run_job(make_job(corpus, tmp_path / "whole"), workers=0)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "whole")


def stopped(job: CorpusOrder, at: str = "search", tasks: int = 0) -> None:
    def report(stage: str, done: int, total: int) -> None:
        if stage == at and done >= tasks:
            raise StopError

    with pytest.raises(StopError):
        run_job(job, workers=0, report=report)


def test_ids_with_labels_are_ordered_only_where_they_are_left_out(tmp_path: Path) -> None:
    ids = [list(range(i, i + 40)) for i in range(60)]
    table = pa.table({"input_ids": ids, "labels": ids})
    pq.write_table(table, tmp_path / "a.parquet")
    order = ["order", tmp_path / "a.parquet", tmp_path / "out", "--workers", "0"]
    for named in ([], ["--tokens", "input_ids"]):
        with pytest.raises(ConfigError):
            output_of(*order, *named)
    output_of(*order, "--tokens", "input_ids", "--loss-mask", "")
    assert list((tmp_path / "out").glob("*.parquet"))
