"""A tiny Qwen2-VL learns the colours of shapes: `python examples/vlm_finetune.py`.

The loop is the same for padded and for packed rows. Images are drawn with Pillow; model, tokenizer
and processor are made here, so nothing is downloaded. Runs on a CPU in half a minute.

A real run has ``processor = AutoProcessor.from_pretrained(...)`` in place of `make_processor`, and
files in place of the list of records.
"""

from __future__ import annotations

import io
import json
import time
from itertools import islice
from typing import Any

import torch
import transformers
from PIL import Image, ImageDraw
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

from streampack import PackedDataset, PackedLoader, Topology
from streampack.media import Images
from streampack.packing import BestFitDecreasing, Pad

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 200)}
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)


def make_records(count: int) -> list[dict[str, Any]]:
    """Questions about one to three shapes, an image each, of several sizes."""
    rng = torch.Generator().manual_seed(0)
    records = []
    for _ in range(count):
        numbers = torch.randint(0, 1 << 30, (8,), generator=rng).tolist()
        named = [list(COLOURS)[number % 3] for number in numbers[: 1 + numbers[6] % 3]]
        images = []
        for colour, number in zip(named, numbers[3:], strict=False):
            width, height = 16 + number % 60, 16 + number // 60 % 60
            image = Image.new("RGB", (width, height), "white")
            box = (2, 2, width - 3, height - 3)
            ImageDraw.Draw(image).ellipse(box, fill=COLOURS[colour])
            out = io.BytesIO()
            image.save(out, "JPEG")
            images.append(out.getvalue())
        question = [*({"type": "image"} for _ in images), {"type": "text", "text": "Colours?"}]
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": ", ".join(named)},
        ]
        records.append({"messages": messages, "images": images})
    return records


class ImagesAlone(transformers.Qwen2VLProcessor):
    """The processor of Qwen2-VL without its part for videos, which needs torchvision."""

    attributes = ("image_processor", "tokenizer")
    tokenizer_class = "PreTrainedTokenizerFast"

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        transformers.ProcessorMixin.__init__(
            self, image_processor, tokenizer, chat_template=TEMPLATE
        )


def make_processor() -> Any:
    """Return a processor with bytes as tokens and patches of four pixels."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Engine(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(SPECIAL)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    pixels = transformers.Qwen2VLImageProcessor(patch_size=4, min_pixels=8 * 8, max_pixels=64 * 64)
    return ImagesAlone(pixels, tokenizer)


def make_model(processor: Any) -> Any:
    """A random one, of a few ten thousand weights."""
    config = transformers.Qwen2VLConfig(
        text_config={
            "vocab_size": len(processor.tokenizer), "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 4]},
        },
        vision_config={
            "depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4,
        },
        image_token_id=processor.image_token_id, video_token_id=processor.video_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen2VLForConditionalGeneration(config)


def make_loader(packer: Any, processor: Any) -> PackedLoader:
    """The records in rows of a packer."""
    dataset = PackedDataset(
        Images(make_records(200)), packer=packer, batch_size=4, processor=processor,
        topology=Topology(), epochs=2, lanes=1,
    )  # fmt: skip
    return PackedLoader(dataset)


def train(loader: PackedLoader, processor: Any) -> list[float]:
    """The losses of a run."""
    model = make_model(processor)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in loader:
        loss = batch.loss(model(**batch.hf(model=model)).logits)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train padded and packed, then go on from the middle of a run."""
    processor = make_processor()
    packed = BestFitDecreasing(seq_len=512, overflow="drop")
    for name, packer in (("padded", Pad(seq_len=512, overflow="drop")), ("packed", packed)):
        loader = make_loader(packer, processor)
        began = time.perf_counter()
        losses = train(loader, processor)
        used = loader.metrics()
        print(
            f"{name}: {len(losses)} steps, {used.utilisation:.0%} of the slots used, "
            f"{time.perf_counter() - began:.0f} s, loss {losses[0]:.2f} to {losses[-1]:.2f}"
        )
    whole = [batch.media["pixel_values"] for batch in make_loader(packed, processor)]
    stopped = make_loader(packed, processor)
    for _ in islice(stopped, 3):
        pass
    state = json.dumps(stopped.state_dict())
    again = make_loader(packed, processor)
    again.load_state_dict(json.loads(state))
    rest = [batch.media["pixel_values"] for batch in again]
    same = all(map(torch.equal, whole[3:], rest)) and len(whole) == len(rest) + 3
    print(f"resumed after 3 steps from {len(state)} bytes, with the same pixels: {same}")


if __name__ == "__main__":
    main()
