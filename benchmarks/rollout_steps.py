"""Steps of groups as prefix trees, planned by `pack` and by TRL 1.16:
``python -m benchmarks.rollout_steps``.

A step has 64 groups of 16 answers. Prompts have 300 to 1,500 tokens, answers lognormal ones (median
545, times a lognormal scale of the group), so that many groups are longer than a row of 32,768
slots. 8 ranks train it.

TRL plans with `TokenBudgetBatcher` of its asynchronous GRPO trainer, which takes samples
one by one as they come: its last micro-batch stays open for the samples of the next step, so a line
counts the closed ones and the samples in them. It runs in the environment "trl"
(``python -m benchmarks.environments trl``). "Slowest" is the sum over micro-batches of the
costliest rank's cost, over the mean cost; "planned in" is processor time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RANKS, SEQ_LEN, WIDTH = 8, 32_768, 4096


def drawn(
    seed: int, groups: int, answers: int
) -> tuple[list[NDArray[np.int64]], list[int], list[int]]:
    """Return the ids of each sequence, its group, and the length of its prompt."""
    rng = np.random.default_rng(seed)
    ids, group, prompts = [], [], []
    for number in range(groups):
        prompt = rng.integers(0, 50_000, int(rng.integers(300, 1500)))
        scale = rng.lognormal(0, 0.6)
        for _ in range(answers):
            length = int(np.clip(rng.lognormal(6.3, 0.7) * scale, 8, 16_000))
            ids.append(np.concatenate([prompt, rng.integers(0, 50_000, length)]))
            group.append(number)
            prompts.append(len(prompt))
    return ids, group, prompts


def with_streampack(seed: int, *sizes: int) -> dict[str, Any]:
    """Plan a step with `pack`."""
    from streampack import pack

    ids, group, _ = drawn(seed, *sizes)
    lengths = [len(each) for each in ids]
    for _ in range(2):  # the first one compiles
        began = time.process_time()
        plan = pack(lengths, ids=ids, groups=group, layout="tree", seq_len=SEQ_LEN, ranks=RANKS)
        spent = time.process_time() - began
    placed = sum(len(plan.documents(rank)) for rank in range(RANKS))
    return {
        "slots": plan.tokens.T.tolist(),
        "costs": plan.costs.T.tolist(),
        "placed": placed,
        "seconds": spent,
    }


def with_trl(seed: int, *sizes: int) -> dict[str, Any]:
    """Plan a step with TRL's planner."""
    from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher

    ids, group, prompts = drawn(seed, *sizes)
    samples = [
        {"input_ids": i, "completion_mask": np.arange(len(i)) >= p, "group_id": g}
        for i, g, p in zip(ids, group, prompts, strict=True)
    ]
    began = time.process_time()
    closed = list(TokenBudgetBatcher(samples, RANKS, SEQ_LEN, {}))
    spent = time.process_time() - began
    return {
        "slots": [[len(row.tokens) for row in rows] for rows in closed],
        "costs": [[12 * WIDTH * len(row.tokens) + 2 * row.load for row in rows] for rows in closed],
        "placed": sum(len(row.samples) for rows in closed for row in rows),
        "seconds": spent,
    }


WAYS = {"streampack": with_streampack, "TRL": with_trl}


def line(name: str, seed: int, sizes: tuple[int, int], made: dict[str, Any]) -> list[str]:
    """Return the line of a planned step in the table."""
    ids, group, prompts = drawn(seed, *sizes)
    shared = dict(zip(group, prompts, strict=True))
    distinct = sum(map(len, ids)) - sum(prompts) + sum(shared.values())
    slots, costs = np.array(made["slots"]), np.array(made["costs"], dtype=float)
    return [
        f"{seed}",
        name,
        f"{len(slots)} of {-(-distinct // (RANKS * SEQ_LEN))}",
        f"{slots.mean() / SEQ_LEN:.3f}",
        f"{costs.max(axis=1).sum() / costs.mean(axis=1).sum():.3f}",
        f"{made['placed'] / len(ids):.0%}",
        f"{made['seconds']:.2f} s",
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--trl", type=Path, metavar="PYTHON", help="an environment with TRL 1.16")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.groups, args.answers)
    if args.one:
        print(json.dumps([WAYS[args.one](seed, *sizes) for seed in args.seeds]))
        return

    from benchmarks.environments import python_of
    from benchmarks.report import print_table

    pythons = {"streampack": Path(sys.executable), "TRL": args.trl or python_of("trl")}
    lines = []
    for name, python in pythons.items():
        if python is None:
            print("TRL is left out: python -m benchmarks.environments trl", file=sys.stderr)
            continue
        command = [python, "-m", "benchmarks.rollout_steps", "--one", name, *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        made = json.loads(done.stdout.splitlines()[-1])
        lines += [line(name, seed, sizes, one) for seed, one in zip(args.seeds, made, strict=True)]
    title = f"{args.groups} groups of {args.answers} answers, {RANKS} ranks, rows of {SEQ_LEN:,}"
    head = ["seed", "planner", "micro-batches of fewest", "fill", "slowest", "placed", "planned in"]
    print_table(title, head, sorted(lines))


if __name__ == "__main__":
    main()
