"""Images by URL.

JSON lines name thumbnails of 112 x 112 pixels, each another object. A process reads them in twelve
lanes into rows of 2,048 tokens; the model takes one token and the mean colour of every 8 x 8
pixels, so that the store is the limit. "sizes" are columns of the records.

- "requests", "KB": of one image; "ms": time of the epoch over images.
- "first": seconds to the first batch, which waits for the heads of a small window.
- "MiB": memory of the process after the epoch, beyond its memory after the first tenth of it.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import layouts
from benchmarks.remote import far
from benchmarks.remote.reading import LANES, Stages
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.media import Images
from tests.support.vision import fast_tokenizer

HEAD = ["images", "sizes", "first, s", "requests", "KB", "ms", "MiB"]
COUNTS = [1000, 10_000]
_SIDE, _PATCH = 112, 8


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    _write_images(store.base / "images", max(options.counts))
    store.put("images")
    url = f"{store.store.url}/images"
    for count in options.counts:
        for name, sizes in (("in the heads", []), ("in columns", ["height", "width"])):
            figures = far.run(store.slow, ["images:read", url, count, sizes])
            made = figures["epoch requests"] - figures["warm requests"]
            received = figures["epoch bytes"] - figures["warm bytes"]
            yield [
                f"{count:,}",
                name,
                f"{figures['epoch first']:.2f}",
                f"{made / count:.2f}",
                f"{received / count / 1e3:.1f}",
                f"{figures['epoch s'] / count * 1e3:.2f}",
                f"{figures['epoch memory'] / 1024:.0f}",
            ]


class Means:
    """A token, and a patch, for every 8 x 8 pixels: their mean colour."""

    image_token = "<image>"

    def __init__(self) -> None:
        self.tokenizer = fast_tokenizer(["<|endoftext|>", "<image>"])

    def plan(self, height: int, width: int) -> tuple[int, int]:
        """Tokens and patches."""
        count = (height // _PATCH) * (width // _PATCH)
        return count, count

    def arrays(self, image: Any) -> dict[str, Any]:
        """The mean colours."""
        pixels = np.asarray(image, dtype=np.float32)
        rows, columns = pixels.shape[0] // _PATCH, pixels.shape[1] // _PATCH
        cut = pixels[: rows * _PATCH, : columns * _PATCH].reshape(rows, _PATCH, columns, _PATCH, 3)
        return {"pixel_values": cut.mean((1, 3)).reshape(-1, 3)}

    def describe(self) -> dict[str, Any]:
        """Nothing to choose."""
        return {"patch": _PATCH}


def _write_images(folder: Path, count: int) -> None:
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(coarse).resize((_SIDE, _SIDE)).save(out, "JPEG")
        (folder / f"{number:06}.jpg").write_bytes(out.getvalue())


def read(url: str, count: int, sizes: list[str]) -> Stages:
    """Read the first images by records of their names, after one for imports and kernels."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:

        def batches(images: int) -> Iterator[Any]:
            path = Path(cache) / f"{images}.jsonl"
            with open(path, "w") as file:
                for number in range(images):
                    line = {"text": "<image> z", "image": f"{url}/{number:06}.jpg"}
                    file.write(json.dumps({**line, "height": _SIDE, "width": _SIDE}) + "\n")
            storage = sources.Storage(cache_dir=cache)
            source = Images(str(path), text="text", sizes=tuple(sizes) or None, storage=storage)
            dataset = PackedDataset(
                source,
                seq_len=2048,
                batch_size=8,
                lanes=LANES,
                processor=Means(),
                token_rules=TokenRules(eos="as-is"),
                topology=Topology(),
            )
            return iter(PackedLoader(dataset))

        list(batches(1))
        yield "warm", {}
        began, seen, first_s, early = time.perf_counter(), 0, 0.0, 0.0
        for batch in batches(count):
            first_s = first_s or time.perf_counter() - began
            seen += batch.num_documents
            if not early and seen >= count / 10:
                early = layouts.status("VmRSS")
        spent_s, grown = time.perf_counter() - began, layouts.status("VmRSS") - early
        yield "epoch", {"first": first_s, "s": spent_s, "memory": grown}
