"""Peers that stream files from an S3 store, each with its usual call.

``python -m benchmarks.remote_readers PEER URL [HOST HOSTS RENDEZVOUS]`` reads all of a corpus, or
a host's share of it, in the environment "remote" (`benchmarks.environments`). It prints the seconds
to the first sample and to the end, each as a line of JSON, and goes on when it is sent a line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["FILES", "PEERS", "tell"]

FILES = 8


def tell(figures: dict[str, float]) -> None:
    """Print figures, and wait until the parent has read them."""
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()


def _webdataset(url: str, _: str) -> Iterator[Any]:
    import webdataset

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    user = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    curl = f"pipe:curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user {user} {endpoint}"
    urls = [f"{curl}/{url.removeprefix('s3://')}/{number}.tar" for number in range(FILES)]
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    splitter = webdataset.split_by_node if several else None
    return iter(webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=splitter))


def _datasets(kind: str, ending: str) -> Callable[[str, str], Iterator[Any]]:
    def read(url: str, _: str) -> Iterator[Any]:
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node

        files = [f"{url}/{number}{ending}" for number in range(FILES)]
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        found = load_dataset(
            kind, data_files=files, split="train", streaming=True, storage_options=options
        )
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if ranks > 1:
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
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    dataset = litdata.StreamingDataset(
        input_dir=litdata.streaming.resolver.Dir(path=folder, url=url),
        item_loader=loader.ParquetLoader(),
        storage_options=options,
        shuffle=False,
    )
    return iter(dataset)


#: Readers by name, called with the URL of a corpus and an empty folder.
PEERS: dict[str, Callable[[str, str], Iterator[Any]]] = {
    "webdataset": _webdataset,
    "datasets-parquet": _datasets("parquet", ".parquet"),
    "datasets-jsonl": _datasets("json", ".jsonl"),
    "datasets-jsonl.zst": _datasets("json", ".jsonl.zst"),
    "mosaicml-streaming": _mosaicml,
    "litdata": _litdata,
}


#: Imported before the clock starts.
IMPORTED = {
    "webdataset": ("webdataset",),
    "datasets-parquet": ("datasets", "s3fs", "torch"),
    "datasets-jsonl": ("datasets", "s3fs", "torch"),
    "datasets-jsonl.zst": ("datasets", "s3fs", "torch"),
    "mosaicml-streaming": ("tests.support.mosaic", "boto3", "torch"),
    "litdata": ("litdata", "boto3", "polars"),
}


def _index(folder: str) -> None:
    """Write litdata's index of a folder of Parquet files."""
    writer: Any = importlib.import_module("litdata.streaming.writer")
    writer.index_parquet_dataset(folder)


def main() -> None:
    """One run."""
    name, url, *hosts = sys.argv[1:]
    if name == "index":
        _index(url)
        return
    if hosts:
        import torch.distributed as dist

        host, number, rendezvous = hosts
        os.environ |= {"RANK": host, "WORLD_SIZE": number, "LOCAL_RANK": "0"}
        os.environ |= {"LOCAL_WORLD_SIZE": "1", "NNODES": number, "NODE_RANK": host}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=int(host), world_size=int(number)
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for module in IMPORTED[name]:
            importlib.import_module(module)
        began = time.perf_counter()
        count = 0
        for _ in PEERS[name](url, folder):
            count += 1
            if count == 1:
                tell({"first": time.perf_counter() - began})
        tell({"epoch": time.perf_counter() - began, "samples": count})
    if hosts:
        os._exit(0)  # some peers keep threads


if __name__ == "__main__":
    main()
