"""What a batch costs on its way to a device: bytes per token, copies, and stall of a model's step.

    python -m benchmarks.device_path [--steps 50] [--quick]

On a CUDA device the model has 100 million parameters, in bfloat16; elsewhere 10 million. Batches
come from two worker processes and are copied one ahead; stall is the share of the loop's time that
it waits for the loader. Ids and lengths are random, lognormal around 450 tokens.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from streampack import Hook, PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology
from streampack.batch.tensors import stage
from streampack.documents.blocks import Documents

FIELDS = ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens")
VOCABULARY = 32000


def batches(seq_len: int, dtype: Any, *, masked: bool = False, **options: Any) -> PackedLoader:
    """An endless loader of random documents, one row per batch."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(6.1, 1.0, 4000)).astype(np.int64) + 1
    documents = [rng.integers(0, VOCABULARY, n).astype(dtype) for n in lengths]
    dataset = PackedDataset(
        documents, seq_len=seq_len, batch_size=1, epochs=None, lanes=1, topology=Topology(),
        token_rules=TokenRules(pad_id=0, eos_id=0),
        map=Hook("loss on even ids", _even) if masked else None,
    )  # fmt: skip
    return PackedLoader(dataset, **options)


def _even(documents: Documents, seeds: NDArray[np.uint64]) -> Documents:
    return replace(documents, loss_mask=documents.tokens % 2 == 0)


def bytes_per_token(batch: PackedBatch) -> tuple[float, float]:
    """Bytes per slot of what is copied, and of the per-token fields made from it."""
    slots = batch.rows * batch.seq_len
    moved = stage(batch._tensors, pin=False).buffer.nbytes
    fields = sum(getattr(batch, name).nbytes for name in FIELDS)
    return moved / slots, fields / slots


def make_model(device: torch.device, *, tiny: bool) -> torch.nn.Module:
    """A Llama of 100 million parameters, 10 on a CPU; a toy if `tiny`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (768, 12) if device.type == "cuda" else (256, 4)
    if tiny:
        width, layers = 64, 1
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 8 // 3,
        num_hidden_layers=layers, num_attention_heads=width // 64, tie_word_embeddings=True,
        max_position_embeddings=4096,
    )  # fmt: skip
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return LlamaForCausalLM(config).to(device, dtype)


def stall(model: torch.nn.Module, seq_len: int, steps: int) -> tuple[float, float]:
    """Share of the time that training steps wait for the loader, and seconds per step."""
    device = next(model.parameters()).device
    loader = batches(seq_len, np.uint16, num_workers=2, transform=PackedBatch.hf, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
    warm_up = min(10, steps)
    began = waited = 0.0
    for step, arguments in enumerate(loader):
        model(**arguments).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == warm_up:  # kernels are chosen, workers are up
            _finish(device)
            began, waited = time.perf_counter(), loader.metrics().wait_s
        if step == warm_up + steps:
            break
    _finish(device)
    elapsed = time.perf_counter() - began
    return (loader.metrics().wait_s - waited) / elapsed, elapsed / steps


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_path")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seq_len = 512 if options.quick else 4096
    for dtype, masked in ((np.uint16, False), (np.uint16, True), (np.uint32, False)):
        moved, fields = bytes_per_token(next(iter(batches(seq_len, dtype, masked=masked))))
        what = f"{np.dtype(dtype).name} ids{', loss masks' if masked else ''}"
        print(f"{what}: {moved:.2f} bytes per token in one copy, {fields:.1f} made from them")
    model = make_model(device, tiny=options.quick)
    steps = 3 if options.quick else options.steps
    share, each = stall(model, seq_len if device.type == "cuda" else 512, steps)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"stall {share:.3%} of {each * 1e3:.1f} ms steps of {millions:.0f} M parameters, {device}"
    )


if __name__ == "__main__":
    main()
