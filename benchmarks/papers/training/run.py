"""One run of the GPU experiment, in as many pieces as it takes."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.papers.model import SmallGPT, adamw, descend, label_losses
from benchmarks.papers.training.corpus import Corpus
from benchmarks.papers.training.probes import Probes
from benchmarks.papers.training.protocol import Arm, Preset
from streampack import PackedDataset, PackedLoader, TokenRules, Topology
from streampack.packing import Composition

__all__ = ["Run"]

WARM_UP, FALLING = 0.02, 0.4  # shares of the tokens
CLOCK_EVERY = 20  # steps


class Run:
    """A model on its way through an arm's batches.

    Args:
        arm, seed: which run.
        preset, corpus, device: what it is made with.
        checkpoint: a file from which it goes on, if it is there, and where `save` writes.
    """

    def __init__(
        self, arm: Arm, seed: int, preset: Preset, corpus: Corpus, device: str, checkpoint: Path
    ) -> None:
        self.arm, self.seed, self.preset, self.corpus = arm, seed, preset, corpus
        self.device, self.checkpoint = device, checkpoint
        torch.manual_seed(seed)
        self.model = SmallGPT(preset.size).to(device)
        self.optimizer = adamw(self.model)
        self.rows = Composition()
        self.step = 0
        self.curve: list[float] = []
        self.seconds = 0.0
        dataset = PackedDataset(
            corpus.train,
            packer=arm.packer,
            batch_size=preset.batch_size,
            attention="row",
            order=arm.order,
            token_rules=TokenRules(eos_id=corpus.eos_id, vocab_size=corpus.vocab_size),
            seed=seed,
            epochs=None,
            lanes=1,
            topology=Topology(),
        )
        self.loader = PackedLoader(dataset)
        if checkpoint.exists():
            self._restore()

    def go(self, until: float) -> bool:
        """Learn up to the preset's tokens, or save and stop at that time of `time.monotonic`.

        Returns:
            Whether it is through.
        """
        began = time.monotonic()
        losses: list[Tensor] = []
        for batch in self.loader:
            share = self.rows.placed / self.preset.tokens
            slope = min((share + 1e-3) / WARM_UP, (1 - share) / FALLING, 1)
            loss = label_losses(self.model, batch.to(self.device)).mean()
            descend(self.model, self.optimizer, loss, slope * self.preset.learning_rate)
            losses.append(loss.detach())
            self.rows += batch.composition
            self.step += 1
            done = self.rows.placed >= self.preset.tokens
            if done or self.step % CLOCK_EVERY == 0:
                self.curve.append(round(float(torch.stack(losses).mean()), 4))
                losses = []
                if done or time.monotonic() >= until:
                    break
        self.seconds += time.monotonic() - began
        if not done:
            self.save()
        return done

    def save(self) -> None:
        """Write everything that the next piece needs, or leave the file as it was."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "rows": asdict(self.rows),
            "step": self.step,
            "curve": self.curve,
            "seconds": self.seconds,
        }
        new = self.checkpoint.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, self.checkpoint)

    def _restore(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.rows = Composition(**state["rows"])
        self.step, self.curve, self.seconds = state["step"], state["curve"], state["seconds"]

    def result(self, probes: Probes) -> dict[str, Any]:
        """What a line of the file of results holds."""
        return {
            "arm": self.arm.name,
            "seed": self.seed,
            "packer": self.arm.packer.describe(),
            "measures": probes.measured(self.model),
            "steps": self.step,
            "curve": self.curve,
            "composition": asdict(self.rows),
            "seconds": round(self.seconds, 1),
        }
