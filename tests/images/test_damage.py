"""Images that are odd or damaged: right, or named."""

from __future__ import annotations

import gc
import io
import json
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streampack import PackedLoader
from streampack.documents.blocks import Documents, make_origin
from streampack.documents.fields import FieldSpec
from streampack.errors import ContentError, StorageError
from streampack.images import Images
from streampack.images.attachments import MEDIA, Attachments, objects
from streampack.images.images import (
    BrokenImageError,
    decoded,
    size_of,
)
from streampack.images.processing import MediaProcessing
from streampack.images.reader import ImageReader
from streampack.sources import Storage
from streampack.window.entries import HeldBlocks
from tests.support.vision import PLACE, drawn, png, qwen_processor, records
from tests.support.vision_families import FAMILIES
from tests.support.vision_runs import assert_as_processor, dataset, documents_of

EXIF = Image.Exif()
EXIF[0x0112] = 6
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def rotated(orientation: int, form: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return png(drawn(1, 40, 24), form, exif=exif)


def chunk(name: bytes, content: bytes) -> bytes:
    size, total = len(content), zlib.crc32(name + content)
    return size.to_bytes(4, "big") + name + content + total.to_bytes(4, "big")


def rotated_png(kind: str, *, behind: bool, side: int = 24) -> bytes:
    """A PNG with the orientation in a chunk of some kind, before the pixels or behind them."""
    exif = EXIF.tobytes()
    profile = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    content = {
        "eXIf": exif.removeprefix(b"Exif\0\0"),
        "tEXt": b"Raw profile type exif\0" + profile,
        "zTXt": b"Raw profile type exif\0\0" + zlib.compress(profile),
        "iTXt": b"XML:com.adobe.xmp\0\0\0\0\0" + XMP,
    }[kind]
    data = png(drawn(1, 40, side))
    at = data.index(b"IEND" if behind else b"IDAT") - 4
    return data[:at] + chunk(kind.encode(), content) + data[at:]


def rotated_far_from_the_end() -> bytes:
    data = rotated_png("eXIf", behind=True)
    at = data.index(b"IEND") - 4
    return data[:at] + chunk(b"tEXt", b"Comment\0" + b"x" * 80_000) + data[at:]


def depth_of_16_bits() -> bytes:
    values = np.random.default_rng(0).integers(0, 1 << 16, (30, 40), dtype=np.uint16)
    return png(Image.fromarray(values))


ODD = {
    **{f"rotated by EXIF {i}": rotated(i) for i in range(1, 9)},
    **{f"rotated {form}": rotated(6, form) for form in ("PNG", "WEBP", "TIFF", "MPO")},
    **{
        f"PNG rotated by {kind} {'behind' if behind else 'before'} the pixels": rotated_png(
            kind, behind=behind
        )
        for kind in ("eXIf", "tEXt", "zTXt", "iTXt")
        for behind in (False, True)
    },
    "PNG rotated far from the end of its file": rotated_far_from_the_end(),
    "TIFF rotated by XMP": png(drawn(1, 40, 24), "TIFF", tiffinfo={700: XMP}),
    "pages": png(drawn(8, 40, 30), "TIFF", save_all=True, append_images=[drawn(9, 30, 20)]),
    "garbage behind": png(drawn(2, 40, 30)) + b"garbage" * 99,
    "16 bits": depth_of_16_bits(),
    "grey with alpha": png(drawn(3, 40, 30).convert("LA")),
    "palette with alpha": png(drawn(4, 40, 30).convert("P"), transparency=bytes(range(256))),
    "floats": png(drawn(3, 40, 30).convert("F"), "TIFF"),
    "JPEG 2000": png(drawn(3, 40, 30), "JPEG2000"),
    "CMYK": png(drawn(2, 40, 30).convert("CMYK"), "JPEG"),
    "grey": png(drawn(3, 40, 30).convert("L")),
    "palette": png(drawn(4, 40, 30).convert("P")),
    "one bit": png(drawn(5, 40, 30).convert("1")),
    "with alpha": png(drawn(6, 40, 30).convert("RGBA")),
    "animated": png(drawn(8, 40, 30), "GIF", save_all=True, append_images=[drawn(9, 40, 30)]),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_images_are_as_transformers_loads_them(kind: str) -> None:
    from transformers.image_utils import load_image

    data = ODD[kind]
    size = size_of(data)
    loaded = load_image(Image.open(io.BytesIO(data)))
    made = decoded(data, size)
    assert (made.height, made.width) == size
    assert np.array_equal(np.asarray(made), np.asarray(loaded))
    given = [{"text": f"0:{PLACE}", "images": [data]}]
    assert_as_processor(documents_of(dataset(Images(given, text="text"))), given)


@pytest.mark.parametrize("where", ["path", "store"])
@pytest.mark.parametrize("behind", [False, True])
def test_large_png_is_turned_by_every_reader(where: str, behind: bool, tmp_path: Path) -> None:
    import fsspec

    data = rotated_png("iTXt", behind=behind, side=900)
    assert len(data) > 64 << 10
    if where == "path":
        path = str(tmp_path / "a.png")
        Path(path).write_bytes(data)
    else:
        path = f"memory://turned/{behind}.png"
        fsspec.filesystem("memory").pipe(path, data)
    size = size_of(path, Storage(cache_dir=tmp_path))
    assert size == (40, 900)
    made = decoded(path, size, Storage(cache_dir=tmp_path))
    assert np.array_equal(np.asarray(made), np.rot90(np.asarray(drawn(1, 40, 900)), 3))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "RGBA", "P", "I;16"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_tiff_is_turned_by_path_as_it_is_in_memory(
    mode: str, orientation: int, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = drawn(1, 40, 24)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L"), dtype=np.uint16))
    data = png(image if mode == "I;16" else image.convert(mode), "TIFF", exif=exif)
    path = str(tmp_path / "a.tif")
    Path(path).write_bytes(data)
    size = size_of(path)
    assert size == size_of(data) == ((40, 24) if orientation > 4 else (24, 40))
    assert np.array_equal(np.asarray(decoded(path, size)), np.asarray(decoded(data, size)))
    documents = [{"text": f"0:{PLACE}", "images": [path]}]
    assert len(documents_of(dataset(Images(documents, text="text")))) == 1


def test_shape_that_the_processor_tiles_unlike_its_count_is_found_before_the_plan() -> None:
    processor = FAMILIES["LLaVA-OneVision"].processor()
    good = {"text": "<image> a square", "images": [png(drawn(0, 32, 32))]}
    given = [good, {"text": "<image> a line", "images": [png(drawn(0, 1400, 2))]}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text"), processor))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(dataset(Images(given, text="text"), processor, on_error="skip"))
    assert sum(batch.num_documents for batch in loader) == 1
    assert loader.metrics().skipped == 1


class Particular:
    """A model that takes no grey image."""

    tokenizer, image_token = qwen_processor().tokenizer, "<|image_pad|>"

    def plan(self, height: int, width: int) -> tuple[int, int]:
        return 1, 1

    def arrays(self, image: Image.Image) -> dict[str, Any]:
        if image.size != (56, 56) and len(image.getcolors(1 << 20) or ()) == 1:
            raise ValueError("is grey")
        return {"pixel_values": np.zeros((1, 4), dtype=np.float32)}

    def describe(self) -> dict[str, Any]:
        return {}


def test_image_of_which_no_grey_one_takes_the_place_is_named_when_it_is_broken() -> None:
    given = [{"text": "0:<|image_pad|>", "images": [png(drawn(0, 40, 30))[:-500]]}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text"), Particular(), on_error="skip"))
    assert caught.value.document == "item 0 of the list"


def test_jpeg_that_declares_more_pixels_than_pillow_allows_is_named() -> None:
    data = bytearray(png(drawn(0, 20, 20), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = (65000).to_bytes(2, "big") * 2
    with pytest.raises(BrokenImageError, match="DecompressionBomb"):
        size_of(bytes(data))


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (9, 1), (1, 9), (3, 40)])
def test_colours_of_the_smallest_images_are_the_last_dimension(size: tuple[int, int]) -> None:
    image = drawn(7, *size)
    given = [{"text": f"0:{PLACE}", "images": [png(image)]}]
    ((_, _, pixels),) = documents_of(dataset(Images(given, text="text"))).values()
    made = qwen_processor().image_processor(
        images=[image], return_tensors="np", input_data_format="channels_last"
    )
    assert pixels == made["pixel_values"].tobytes()


def bomb() -> bytes:
    """A PNG with a header that declares 4 * 10**9 pixels."""
    data = bytearray(png(drawn(0, 20, 20)))
    data[16:24] = (65000).to_bytes(4, "big") * 2
    return bytes(data)


#: Before the plan: the head is wrong.
WRONG = {
    "decompression bomb": bomb(),
    "empty": b"",
    "text": b"<html>404</html>",
    "PostScript": png(drawn(0, 20, 20), "EPS"),
    "cut in its head": png(drawn(0, 20, 20))[:20],
    "longer than 200 times its width": png(drawn(0, 2, 500)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_images_that_cannot_be_planned_are_named_or_their_documents_left_out(kind: str) -> None:
    good = {"text": f"good:{PLACE}", "images": [png(drawn(0, 20, 20))]}
    given = [good, {"text": f"bad:{PLACE}", "images": [WRONG[kind]]}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text")))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(dataset(Images(given, text="text"), on_error="skip"))
    assert documents_of(loader).keys() == {"good"}
    assert loader.metrics().skipped == 1


@pytest.mark.parametrize("images", [[], [png(drawn(0, 20, 20))]])
def test_text_that_writes_the_token_of_features_itself_is_refused(images: list[bytes]) -> None:
    example = FAMILIES["Gemma 3"]
    given = [{"text": f"<image_soft_token>{example.place * len(images)}", "images": images}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text"), example.processor()))
    assert caught.value.document == "item 0 of the list"


def test_images_that_are_opened_and_shared_are_read_by_workers_and_threads(tmp_path: Path) -> None:
    files = [png(drawn(i, 90, 90)) for i in range(4)]
    opened = []
    for i, data in enumerate(files):
        (tmp_path / f"{i}.png").write_bytes(data)
        opened.append(Image.open(io.BytesIO(data) if i == 3 else tmp_path / f"{i}.png"))
    given = [{"text": f"{i}:{PLACE}", "images": [files[i % 4]]} for i in range(64)]
    items = [{**one, "images": [opened[i % 4]]} for i, one in enumerate(given)]
    source = Images(items, text="text", folder=tmp_path / "elsewhere")
    made = dataset(source, lanes=4, batch_size=2)
    assert_as_processor(documents_of(PackedLoader(made, num_workers=2)), given)


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 40]) + data[-9:]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("damage", [flipped, lambda data: data[: len(data) * 2 // 3]])
def test_damage_behind_the_head_is_found_when_the_batch_is_made(form: str, damage: Any) -> None:
    hurt = damage(png(drawn(0, 64, 64), form))
    given = [
        {"text": f"good:{PLACE}z", "images": [png(drawn(0, 20, 20))]},
        {"text": f"bad:{PLACE}z", "images": [hurt]},
    ]
    try:
        decoded(hurt, size_of(hurt))
    except ValueError:
        with pytest.raises(ContentError) as caught:
            list(dataset(Images(given, text="text")))
        assert caught.value.document == "item 1 of the list"
        found = documents_of(dataset(Images(given, text="text"), on_error="skip"))
        assert not any(found.get("bad", ([], [], b""))[1])
        assert any(found["good"][1])
    else:  # some decoders go on behind an error
        assert documents_of(dataset(Images(given, text="text"))).keys() == {"good", "bad"}


def test_window_lets_go_of_the_images_of_documents_that_went() -> None:
    images = [drawn(0, 9, 9), drawn(1, 9, 9)]
    held = [weakref.ref(image) for image in images]
    planned = [Attachments((images[0],)), Attachments(()), Attachments((images[1],))]
    ids = [np.arange(3, dtype=np.uint16)] * 3
    block = Documents.from_arrays(ids, document_fields={MEDIA: objects(planned)})
    store = HeldBlocks()
    store.add(block, 0, range(3))
    del planned, block, images
    assert [own is not None for own in store.objects(MEDIA, np.arange(3))] == [True, False, True]
    store.keep(np.array([1, 2]))
    gc.collect()
    assert [own() is not None for own in held] == [False, True]


def test_images_of_a_store_are_read_by_their_heads_and_then_whole(tmp_path: Path) -> None:
    import fsspec

    given = records(12)
    with fsspec.open("memory://images/list.jsonl", "w") as file:
        for i, record in enumerate(given):
            names = [f"memory://images/{i}-{k}.png" for k in range(len(record["images"]))]
            for name, data in zip(names, record["images"], strict=True):
                fsspec.filesystem("memory").pipe(name, data)
            file.write(json.dumps({"text": record["text"], "images": names}) + "\n")
    storage = Storage(cache_dir=tmp_path)
    source = Images("memory://images/list.jsonl", text="text", storage=storage)
    assert_as_processor(documents_of(dataset(source)), given)


def test_store_that_fails_for_a_while_takes_no_loss_from_a_document() -> None:
    url, storage = "http://127.0.0.1:9/a.png", Storage(retries=0)  # where nothing listens
    reader = ImageReader("text", ("images",), storage=storage)
    given = [{"text": PLACE, "images": [url]}]
    block, _ = reader.block(given, make_origin(0, np.arange(1)), FieldSpec(), False)
    (attached,) = block.document_fields[MEDIA]
    with pytest.raises(StorageError):
        size_of(attached.references[0], attached.storage)
    with pytest.raises(StorageError):
        MediaProcessing(qwen_processor())._arrays((url, (9, 9), 4, storage))
