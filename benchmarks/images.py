"""Cost of planning an image, beside decoding it: ``python -m benchmarks.images``.

Images of some kinds by the processor of Qwen2-VL with its own settings. "plan" is reading the size
from the head of the file and placing its tokens, "decode" the work left for the batch, decoding and
the processor: both of one thread, per image, the shortest of several passes. "held" are the bytes
that a window holds of an image, "pixels" the bytes of its `pixel_values`, which a buffer of decoded
samples holds.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from benchmarks.report import print_table
from examples.vlm_finetune import make_processor
from streampack import sources
from streampack.documents import make_origin
from streampack.documents.fields import FieldSpec
from streampack.images.processing import MediaProcessing
from streampack.images.reader import ImageReader
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import load_tokenizer

#: Width, height, format, and whether the sizes stand in fields.
KINDS = {
    "photographs, 1024 x 768, JPEG": (1024, 768, "JPEG", False),
    "photographs, 3072 x 2304, JPEG": (3072, 2304, "JPEG", False),
    "thumbnails, 224 x 224, JPEG": (224, 224, "JPEG", False),
    "the same with `sizes=`": (224, 224, "JPEG", True),
    "thumbnails, 224 x 224, PNG": (224, 224, "PNG", False),
}
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"


def drawn(seed: int, width: int, height: int, form: str) -> bytes:
    """Soft coloured noise, which takes about as many bytes as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(out, form)
    return out.getvalue()


def shortest(call: Callable[[], Any], passes: int) -> tuple[float, Any]:
    """Return the seconds of the fastest pass, after one to warm up, and its result."""
    times, made = [], None
    for _ in range(passes + 1):
        began = time.perf_counter()
        made = call()
        times.append(time.perf_counter() - began)
    return min(times[1:]), made


def measured(kind: tuple[int, int, str, bool], count: int, passes: int) -> list[str]:
    """A row of the table."""
    processor = make_processor()
    processor.image_processor = transformers.Qwen2VLImageProcessor()
    width, height, form, given = kind
    images = [drawn(i, width, height, form) for i in range(count)]
    common = {"text": f"{PLACE} what a photograph shows", "height": height, "width": width}
    records = [{**common, "images": each} for each in images]
    reader = ImageReader("text", ("images",), ("height", "width") if given else None)
    media = MediaProcessing(processor)
    tokenizer = load_tokenizer(processor.tokenizer, eos="as-is")
    source, skips = sources.Items(["text"]), ErrorPolicy("raise")
    origin = make_origin(0, np.arange(count, dtype=np.int64))
    block, _ = reader.block(records, origin, FieldSpec(), False)
    ids = replace(tokenizer.encode(block, skips), document_fields=block.document_fields)
    plan_s, documents = shortest(lambda: media.expanded(ids, source, skips), passes)
    jobs = [
        (own.references[0], own.sizes[0], int(own.patches[0]), None)
        for own in documents.document_fields["media"]
    ]
    decode_s, made = shortest(lambda: [media._arrays(job) for job in jobs], passes)
    held = sum(map(len, images)) / count
    pixels = sum(each["pixel_values"].nbytes for each in made) / count
    return [
        f"{documents.num_tokens // count:,}",
        f"{1e6 * plan_s / count:.0f} us",
        f"{1e3 * decode_s / count:.1f} ms",
        f"{decode_s / plan_s:,.0f}",
        f"{held / 1e3:,.0f} KB",
        f"{pixels / 1e6:,.1f} MB",
        f"{pixels / held:,.0f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--count",
        type=int,
        default=32,
        help="images of each kind: as many documents as a block of them has",
    )
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_table(
        "Images",
        ["images", "tokens", "plan", "decode", "times", "held", "pixels", "times"],
        [[name, *measured(kind, options.count, options.passes)] for name, kind in KINDS.items()],
    )


if __name__ == "__main__":
    main()
