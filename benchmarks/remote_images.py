"""Images by URL in a store 30 ms away that sends 50 MB/s: ``python -m benchmarks.remote_images``.

JSON lines name thumbnails of 112 x 112 pixels in an S3 store, each another object. A process reads
them in twelve lanes into rows of 2,048 tokens; the model takes one token and the mean colour of
every 8 x 8 pixels, so that the store is the limit. "sizes" are columns of the records.

- "requests", "KB": of one image; "ms": time of the epoch over images.
- "first": seconds to the first batch, which waits for the heads of a small window.
- "MiB": memory of the process after the epoch, beyond its memory after the first tenth of it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.remote import far_store
from benchmarks.remote_starts import put
from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.media import Images
from tests.support.vision import fast_tokenizer

SIDE, PATCH = 112, 8
LANES = 12


class Means:
    """A token, and a patch, for every 8 x 8 pixels: their mean colour."""

    image_token = "<image>"

    def __init__(self) -> None:
        self.tokenizer = fast_tokenizer(["<|endoftext|>", "<image>"])

    def plan(self, height: int, width: int) -> tuple[int, int]:
        """Tokens and patches."""
        count = (height // PATCH) * (width // PATCH)
        return count, count

    def arrays(self, image: Any) -> dict[str, Any]:
        """The mean colours."""
        pixels = np.asarray(image, dtype=np.float32)
        rows, columns = pixels.shape[0] // PATCH, pixels.shape[1] // PATCH
        cut = pixels[: rows * PATCH, : columns * PATCH].reshape(rows, PATCH, columns, PATCH, 3)
        return {"pixel_values": cut.mean((1, 3)).reshape(-1, 3)}

    def describe(self) -> dict[str, Any]:
        """Nothing to choose."""
        return {"patch": PATCH}


def images(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of JPEG files, each another one."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(coarse).resize((SIDE, SIDE)).save(out, "JPEG")
        yield f"{number:06}.jpg", out.getvalue()


def loader_of(path: str, sizes: str, cache: str) -> PackedLoader:
    """A loader of the records in a file."""
    named = tuple(sizes.split(",")) if sizes else None
    source = Images(path, text="text", sizes=named, storage=sources.Storage(cache_dir=cache))
    dataset = PackedDataset(
        source,
        seq_len=2048,
        batch_size=8,
        lanes=LANES,
        processor=Means(),
        token_rules=TokenRules(eos="as-is"),
        topology=Topology(),
    )
    return PackedLoader(dataset)


def read(path: str, sizes: str) -> None:
    """Read an epoch in this process; tell the figures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        total = Path(path).read_bytes().count(b"\n")
        list(loader_of(str(Path(path).with_name("warm.jsonl")), "height,width", cache))
        began, seen, first_s, early = time.perf_counter(), 0, 0.0, 0.0
        for batch in loader_of(path, sizes, cache):
            first_s = first_s or time.perf_counter() - began
            seen += batch.num_documents
            if not early and seen >= total / 10:
                early = _memory_bytes()
        spent = time.perf_counter() - began
        memory = _memory_bytes() - early
    print(json.dumps({"first": first_s, "epoch": spent, "memory": memory, "images": seen}))


def _memory_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measured(path: Path, sizes: str, slow: SlowStore) -> dict[str, float]:
    """Return the figures of one process, and the store's counts."""
    slow.served.clear()
    endpoint = f"http://127.0.0.1:{slow.port}"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.remote_images", "--read", str(path), sizes],
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {**json.loads(done.stdout), **slow.served}


def row(name: str, found: dict[str, float]) -> list[str]:
    """Return a row of the table."""
    count = found["images"]
    return [
        f"{count:,.0f}",
        name,
        f"{found['first']:.2f}",
        f"{found['requests'] / count:.2f}",
        f"{found['bytes'] / count / 1e3:.1f}",
        f"{found['epoch'] / count * 1e3:.2f}",
        f"{found['memory'] / (1 << 20):.0f}",
    ]


def write(path: Path, url: str, count: int) -> None:
    """Write records that name the first images."""
    with open(path, "w") as file:
        for number in range(count):
            line = {"text": "<image> z", "image": f"{url}/images/{number:06}.jpg"}
            file.write(json.dumps({**line, "height": SIDE, "width": SIDE}) + "\n")


def compare(counts: list[int]) -> None:
    """Run the sizes of corpora one after the other, and print the table."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        with far_store(base / "store") as (store, slow, _):
            put(store, "images", images(max(counts)))
            write(base / "warm.jsonl", store.url, 1)
            for count in counts:
                path = base / f"{count}.jsonl"
                write(path, store.url, count)
                for name, sizes in (("in the heads", ""), ("in columns", "height,width")):
                    rows.append(row(name, measured(path, sizes, slow)))
                    print(" | ".join(rows[-1]), file=sys.stderr)
    head = ["images", "sizes", "first, s", "requests", "KB", "ms", "MiB"]
    print_table(f"From {store.name}, in {LANES} lanes", head, rows)


def main() -> None:
    """One run, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--read", nargs=2, metavar=("PATH", "SIZES"), help="one run")
    arguments = parser.parse_args()
    if arguments.read:
        read(*arguments.read)
    else:
        compare(arguments.images)


if __name__ == "__main__":
    main()
