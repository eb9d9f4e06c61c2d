"""Steps of a process: batches, losses, weights and random states."""

from __future__ import annotations

from typing import Any

from .digests import digest, random_states, raw, tensors_in
from .watch import Watch

SAMPLED = 64  # elements of a tensor that its digest reads
MOST_ROWS = 256


class Steps:
    """Sees the steps of a process that trains with torch."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.depth = 0  # calls of modules around this one
        self.in_backward = self.in_step = False
        self.optimizer: dict[str, Any] = {}  # the one that makes a step
        self.batches: list[str] = []
        self.rows: list[str] = []
        self.losses: list[float] = []
        self.tokens = 0
        self.states: dict[str, str] = {}  # of generators, at the step's beginning
        self.drawn: list[str] = []  # generators used since the last step, as by a loader
        self.last_states: dict[str, str] = {}
        self.scaler: Any = None

    def before_forward(self, arguments: Any) -> None:
        """Note the input of the outermost module that runs in training."""
        if not self.in_step:
            self.watch.wait_at("batch")
            self.in_step = True
            self.batches, self.rows, self.losses, self.tokens = [], [], [], 0
            self.states, last = random_states(), self.last_states
            self.drawn = [name for name in last if last[name] != self.states.get(name)]
        data = [tensor for tensor in tensors_in(arguments) if not tensor.requires_grad]
        kinds = [
            tensor.dtype.is_floating_point or str(tensor.dtype) == "torch.bool" for tensor in data
        ]
        ids = [
            tensor for tensor, other in zip(data, kinds, strict=True) if not other and tensor.dim()
        ]
        self.batches.append(digest(*(raw(tensor) for tensor in ids or data)))
        if ids or data:
            first = (ids or data)[0]
            self.tokens += first.numel()
            rows = [first] if first.dim() < 2 else first.unbind()
            self.rows += [digest(raw(row)) for row in rows[:MOST_ROWS]]

    def after_backward(self, losses: Any) -> None:
        """Note the loss; the moment "step" is here."""
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        self.losses += [float(loss.detach().float().mean()) / scale for loss in tensors_in(losses)]
        self.watch.wait_at("step")

    def before_step(self, optimizer: Any) -> None:
        """Note the weights and states of an optimizer."""
        weights, states = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                weights.append(raw(parameter, SAMPLED))
                state = optimizer.state.get(parameter, {})
                states += [raw(tensor, SAMPLED) for tensor in tensors_in(state)]
        self.optimizer = {
            "weights": digest(*weights),
            "state": digest(*states) if states else None,
            "rates": [float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
        }

    def after_step(self) -> None:
        """Note a step at its first optimizer, which may have run the forward pass itself."""
        watch = self.watch
        if self.in_step:
            states = random_states()
            watch.write(
                "step", rank=watch.rank(), batches=self.batches, rows=self.rows, tokens=self.tokens,
                losses=self.losses, random=self.states, drawn=self.drawn,
                used=[name for name in states if states[name] != self.states.get(name)],
                scale=None if self.scaler is None else self.scaler.get_scale(),
            )  # fmt: skip
            self.last_states, self.in_step = states, False
            watch.count += 1
        watch.write("optimizer", rank=watch.rank(), **self.optimizer)

    def before_batch(self) -> None:
        """Note that torch's DataLoader is asked for a batch; the moment "loader" is here."""
        if not self.in_step:
            self.watch.write("loader", rank=self.watch.rank())
            self.watch.wait_at("loader")

    def watch_torch(self) -> None:
        """See forwards, losses, optimizer steps and batches of torch."""
        import torch
        from torch.optim import optimizer

        call, backward = torch.nn.Module.__call__, torch.autograd.backward
        following = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
        scale = torch.amp.GradScaler.scale

        def is_capturing() -> bool:
            ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            return ready and torch.cuda.is_current_stream_capturing()

        def watched_call(module: Any, *arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or self.depth or self.in_backward or is_capturing():
                return call(module, *arguments, **named)
            self.depth = 1
            try:
                if module.training and torch.is_grad_enabled():
                    self.before_forward((arguments, named))
                return call(module, *arguments, **named)
            finally:
                self.depth = 0

        def watched_backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            self.in_backward = True
            try:
                backward(tensors, *arguments, **named)
            finally:
                self.in_backward = False
            self.after_backward(tensors)

        def watched_next(iterator: Any) -> Any:
            self.before_batch()
            return following(iterator)

        def watched_scale(scaler: Any, outputs: Any) -> Any:
            self.scaler = scaler if scaler.is_enabled() else None
            return scale(scaler, outputs)

        torch.nn.Module.__call__ = watched_call  # type: ignore[assignment,method-assign]
        torch.autograd.backward = watched_backward
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__ = watched_next  # type: ignore[assignment,method-assign]
        torch.amp.GradScaler.scale = watched_scale  # type: ignore[assignment,method-assign]
        optimizer.register_optimizer_step_pre_hook(lambda each, *_: self.before_step(each))
        optimizer.register_optimizer_step_post_hook(lambda *_: self.after_step())
