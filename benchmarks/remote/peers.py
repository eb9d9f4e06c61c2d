"""Loaders of packages that stream files from an S3 store, each with its usual call."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

_FILES = 8


def _files(url: str, ending: str) -> list[str]:
    return [f"{url}/{number:05}{ending}" for number in range(_FILES)]


def _webdataset(url: str, _: str) -> Iterator[Any]:
    import webdataset

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    user = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    curl = f"pipe:curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user {user} {endpoint}"
    splitter = webdataset.split_by_node if "WORLD_SIZE" in os.environ else None
    urls = _files(f"{curl}/{url.removeprefix('s3://')}", ".tar")
    return iter(webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=splitter))


def _datasets(kind: str, ending: str) -> Callable[[str, str], Iterator[Any]]:
    def read(url: str, _: str) -> Iterator[Any]:
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node

        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        found = load_dataset(
            kind,
            data_files=_files(url, ending),
            split="train",
            streaming=True,
            storage_options=options,
        )
        if ranks := int(os.environ.get("WORLD_SIZE", "0")):
            found = split_dataset_by_node(found, int(os.environ["RANK"]), ranks)
        return iter(found)

    return read


def _mosaicml(url: str, folder: str) -> Iterator[Any]:
    from tests.support.mosaic import streaming_module

    with streaming_module("base") as base:
        base.util.clean_stale_shared_memory()
        dataset = base.StreamingDataset(remote=url, local=folder, shuffle=False, batch_size=1)
        yield from dataset


def _litdata(url: str, folder: str) -> Iterator[Any]:
    litdata: Any = importlib.import_module("litdata")
    loader: Any = importlib.import_module("litdata.streaming.item_loader")
    downloader: Any = importlib.import_module("litdata.streaming.downloader")
    downloader._OBSTORE_AVAILABLE = False  # it refuses http; without it boto3 downloads
    dataset = litdata.StreamingDataset(
        input_dir=litdata.streaming.resolver.Dir(path=folder, url=url),
        item_loader=loader.ParquetLoader(),
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        shuffle=False,
    )
    return iter(dataset)


Reader = Callable[[str, str], Iterator[Any]]
_DATASETS = ("datasets", "s3fs", "torch")
#: Of each layout the readers by name, called with a URL and an empty folder, and their modules.
PEERS: dict[str, dict[str, tuple[Reader, tuple[str, ...]]]] = {
    "Parquet": {
        "datasets": (_datasets("parquet", ".parquet"), _DATASETS),
        "litdata": (_litdata, ("litdata", "boto3", "polars")),
    },
    "MDS": {"mosaicml-streaming": (_mosaicml, ("tests.support.mosaic", "boto3", "torch"))},
    "tar": {"webdataset": (_webdataset, ("webdataset",))},
    ".jsonl": {"datasets": (_datasets("json", ".jsonl"), _DATASETS)},
}
#: On one machine its hosts would share memory by names, and fail.
ALONE = ("mosaicml-streaming",)


def read(layout: str, name: str, url: str, *host: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Read all of a corpus, or a host's share: its index, their number and a file to meet at."""
    if host:
        import torch.distributed as dist

        rank, number = map(str, host[:2])
        os.environ |= {"RANK": rank, "WORLD_SIZE": number, "LOCAL_RANK": "0"}
        os.environ |= {"LOCAL_WORLD_SIZE": "1", "NNODES": number, "NODE_RANK": rank}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group(
            "gloo", init_method=f"file://{host[2]}", rank=host[0], world_size=host[1]
        )
    reader, modules = PEERS[layout][name]
    for module in modules:  # before the clock starts
        importlib.import_module(module)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        began = time.perf_counter()
        samples = reader(url, folder)
        next(samples, None)
        yield "first", {"s": time.perf_counter() - began}
        for _ in samples:
            pass
        yield "epoch", {"s": time.perf_counter() - began}


def index(folder: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Write litdata's index of a folder of Parquet files."""
    writer: Any = importlib.import_module("litdata.streaming.writer")
    writer.index_parquet_dataset(folder)
    yield "index", {}
