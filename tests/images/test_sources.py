"""Images from every format: the ids and pixels of the processor."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from streampack.errors import ConfigError
from streampack.images import Images
from streampack.sources.error_policy import ErrorPolicy
from tests.support.mosaic import streaming_module
from tests.support.vision import PLACE, drawn, png, records
from tests.support.vision_runs import assert_as_processor, dataset, documents_of


def hugging_face(given: list[dict[str, Any]]) -> Any:
    datasets = pytest.importorskip("datasets")
    images = datasets.Sequence(datasets.Image())
    features = datasets.Features({"text": datasets.Value("string"), "images": images})
    return datasets.Dataset.from_list(given, features=features)


def parquet(folder: Path, given: list[dict[str, Any]]) -> Images:
    hugging_face(given).to_parquet(folder / "a.parquet")
    return Images(folder / "a.parquet", text="text")


def table(folder: Path, given: list[dict[str, Any]]) -> Images:
    hugging_face(given).to_parquet(folder / "a.parquet")
    return Images(pq.read_table(folder / "a.parquet"), text="text")


def tar(folder: Path, given: list[dict[str, Any]], *, as_json: bool = False) -> Images:
    with tarfile.open(folder / "a.tar", "w") as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        for i, record in enumerate(given):
            for k, image in enumerate(record["images"]):
                add(f"{i:04}.{k}.png", image)
            text = record["text"]
            if as_json:
                add(f"{i:04}.json", json.dumps({"caption": text}).encode())
            else:
                add(f"{i:04}.txt", text.encode(errors="surrogateescape"))
    return Images(
        folder / "a.tar", text="json:caption" if as_json else "txt", images=["0.png", "1.png"]
    )


def mds(folder: Path, given: list[dict[str, Any]]) -> Images:
    columns = {"text": "str", "image": "bytes", "number": "int"}
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out=str(folder / "mds"), columns=columns) as out,
    ):
        for i, record in enumerate(given):
            out.write({"text": record["text"], "image": record["images"][0], "number": i})
    return Images(folder / "mds", text="text", images="image")


SOURCES: dict[str, Callable[[Path, list[dict[str, Any]]], Images]] = {
    "parquet": parquet,
    "table": table,
    "hugging face": lambda _, given: Images(hugging_face(given), text="text"),
    "hugging face stream": lambda _, given: Images(
        hugging_face(given).to_iterable_dataset(), text="text"
    ),
    "tar": tar,
    "tar of json": lambda folder, given: tar(folder, given, as_json=True),
    "mds": mds,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_documents_equal_the_processors_from_every_source(kind: str, tmp_path: Path) -> None:
    given = records(20)
    if kind == "mds":
        given = [
            {"text": f"{i}:{PLACE}z", "images": [png(drawn(i, 20 + i, 30))]} for i in range(20)
        ]
    assert_as_processor(documents_of(dataset(SOURCES[kind](tmp_path, given))), given)


def test_a_caption_that_is_not_utf8_is_a_broken_document(tmp_path: Path) -> None:
    given = [{"text": text, "images": [png(drawn(0, 8, 8))]} for text in ("a", "\udcff", "b")]
    (lane,) = tar(tmp_path, given).lanes(1, seed=0, epoch=0, shuffle=False)
    skips = ErrorPolicy("skip")
    ((block, _),) = lane.read(None, skips)
    assert (block.texts, skips.counts.skipped) == (["a", "b"], 1)


def test_fields_of_documents_come_with_images_of_mds(tmp_path: Path) -> None:
    given = [{"text": f"{i}:{PLACE}", "images": [png(drawn(i, 20, 30))]} for i in range(9)]
    batches = dataset(mds(tmp_path, given), document_fields={"number": "int64"})
    found = [number for batch in batches for number in batch.document_fields["number"].tolist()]
    assert sorted(found) == list(range(9))


def test_paths_of_an_imagefolder_count_from_its_file(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    path = tmp_path / "metadata.jsonl"
    path.write_text('{"file_name": "a.png", "text": "one"}\n')
    with pytest.raises(ConfigError) as caught:
        Images(path, text="text").prepare()
    assert caught.value.setting == "images"
    source = Images(path, text="text", images="file_name")
    ((block, _),) = source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, ErrorPolicy())
    (attached,) = block.document_fields["media"]
    assert attached.references == (str(tmp_path / "a.png"),)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metadata.jsonl").write_text(path.read_text())
    with pytest.raises(ConfigError) as caught:
        Images(tmp_path, text="text", images="file_name")
    assert caught.value.setting == "folder"
