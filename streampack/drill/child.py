"""Watch a training process from inside: steps, batches, losses, random states and saves.

`streampack drill` loads this file in every Python process of the command, before its own code, and
perhaps in another environment. So it imports the standard library alone, and changes torch only
after the program has imported it. Observations are lines of JSON in a file of the process.

A *moment* is a place where the drill wants to act: the process reports it and waits there until it
is killed or released. ``{"where": "step", "count": 7, "rank": 1}`` is in the step after 7 steps.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.machinery
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

SETTINGS = "STREAMPACK_DRILL"
SAMPLED = 64  # elements of a tensor that its digest reads
MOST_ROWS = 256
#: Audit events of paths that a program changes or removes.
REMOVING = ("os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: Module, class and method that send requests: of urllib, requests and boto; of fsspec; of the Hub.
REQUESTS = (
    ("http.client", "HTTPConnection", "putrequest"),
    ("aiohttp.client", "ClientSession", "_request"),
    ("httpx._client", "BaseClient", "build_request"),
)
OUTAGE_S = 2.0  # seconds of refused requests, from the first one on


def digest(*parts: bytes) -> str:
    """Digest of bytes, 12 hexadecimal digits."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=6).hexdigest()


def raw(tensor: Any, most: int | None = None) -> bytes:
    """Bytes of a tensor, of at most `most` elements spread over it."""
    import torch

    shape = str(tuple(tensor.shape)).encode()
    try:
        tensor = tensor.detach()
        tensor = tensor.values() if tensor.is_nested else tensor
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        flat = tensor.reshape(-1)
        if most is not None:
            flat = flat[:: max(1, len(flat) // most)]
        return shape + bytes(flat.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    except (NotImplementedError, RuntimeError, TypeError):
        return shape  # a tensor without bytes, as on the meta device


def tensors_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """Tensors of arguments of a model, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each, depth - 1)
    elif depth and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from tensors_in(each, depth - 1)
    elif depth and isinstance(getattr(value, "input_ids", None), torch.Tensor):
        yield value.input_ids


def random_states() -> dict[str, str]:
    """Digests of the generators that programs share."""
    states = {"python": digest(repr(random.getstate()).encode())}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        _, keys, position, *_ = numpy.random.get_state()
        states["numpy"] = digest(keys.tobytes(), str(position).encode())
    if torch is not None:
        states["torch"] = digest(raw(torch.get_rng_state()))
        if torch.cuda.is_initialized():
            states["cuda"] = digest(raw(torch.cuda.get_rng_state()))
    return states


class Watch:
    """Observations of one process, and the moment that it waits for."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.events: str = settings["events"]
        self.checkpoints: tuple[str, ...] = tuple(settings["checkpoints"])  # names of one folder
        self.protected: tuple[str, ...] = tuple(settings["protected"])
        self.drill: int = settings["drill"]
        self.moment: dict[str, Any] = settings["moment"]
        self.count = self.writes = self.renames = 0  # steps; files of the save after the last one
        self.depth = 0  # calls of modules around this one
        self.in_backward = self.in_step = self.is_writing = False
        self.optimizer: dict[str, Any] = {}  # the one that makes a step
        self.batches: list[str] = []
        self.rows: list[str] = []
        self.losses: list[float] = []
        self.tokens = 0
        self.states: dict[str, str] = {}  # of generators, at the step's beginning
        self.drawn: list[str] = []  # generators used since the last step, as by a loader
        self.last_states: dict[str, str] = {}
        self.scaler: Any = None
        self.file = self.requested = -1
        spawned = any("spawn_main" in argument for argument in sys.orig_argv)
        self.write("worker" if spawned else "started", parent=os.getppid())
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Write a file of its own in a forked process, such as a worker."""
        self.file, self.moment = -1, {}
        self.write("worker", parent=os.getppid())

    def write(self, event: str, **values: Any) -> None:
        """Append an observation, which survives if the process is killed after it."""
        if self.file < 0:
            path, self.is_writing = f"{self.events}/{os.getpid()}.jsonl", True
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.is_writing = False
        values |= {"event": event, "time": time.time(), "count": self.count}
        os.write(self.file, json.dumps(values).encode() + b"\n")

    # ------------------------------------------------------------------------------- moments

    def rank(self) -> int:
        """Rank of this training process."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)

    def is_at(self, where: str, nth: int = 0) -> bool:
        """Return True at the moment that the drill has drawn."""
        moment = self.moment
        return (
            moment.get("where") == where
            and moment["count"] == self.count
            and moment.get("nth", 0) == nth
            and moment.get("rank", self.rank()) == self.rank()
        )

    def wait(self) -> None:
        """Report the moment, and wait until the drill has acted."""
        self.moment = {}
        self.write("reached")
        while not os.path.exists(f"{self.events}/released") and os.path.exists(
            f"/proc/{self.drill}"
        ):
            time.sleep(0.005)

    # --------------------------------------------------------------------------------- steps

    def before_forward(self, arguments: Any) -> None:
        """Note the input of the outermost module that runs in training."""
        if not self.in_step:
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
        if self.is_at("step"):
            self.wait()

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
        if self.in_step:
            states = random_states()
            self.write(
                "step", rank=self.rank(), batches=self.batches, rows=self.rows, tokens=self.tokens,
                losses=self.losses, random=self.states, drawn=self.drawn,
                used=[name for name in states if states[name] != self.states.get(name)],
                scale=None if self.scaler is None else self.scaler.get_scale(),
            )  # fmt: skip
            self.last_states, self.in_step, self.writes, self.renames = states, False, 0, 0
            self.count += 1
        self.write("optimizer", rank=self.rank(), **self.optimizer)

    # ------------------------------------------------------------------------------ requests

    def before_request(self) -> None:
        """Note that a request is sent; refuse it in the drill of a store that fails."""
        if self.requested != self.count:
            self.requested = self.count
            self.write("request", rank=self.rank())
        if os.path.exists(f"{self.events}/outage"):
            began = f"{self.events}/refused"
            with open(began, "a"):
                pass
            if time.time() - os.stat(began).st_ctime < OUTAGE_S:
                self.write("refused")
                raise ConnectionResetError(errno.ECONNRESET, "streampack drill refuses requests")

    # --------------------------------------------------------------------------------- saves

    def in_checkpoints(self, path: Any, writes: bool = True) -> str | None:
        """Return the absolute path of a file below the checkpoints, otherwise None."""
        path = path.name if hasattr(path, "write") and hasattr(path, "name") else path
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        if writes and f"{absolute}/".startswith(self.protected):
            reason = "streampack drill protects the real folder of checkpoints"
            raise PermissionError(errno.EACCES, reason, absolute)
        return absolute if absolute.startswith(self.checkpoints) else None

    def before_write(self, path: str) -> None:
        """Note a file of a save; a full disk and the moment between two files are here."""
        if self.is_at("files", self.writes):
            self.wait()
        self.write("write", rank=self.rank(), nth=self.writes, path=path, line=self.line())
        self.writes += 1
        if self.is_full():
            self.truncate(path, 0)

    def is_full(self) -> bool:
        """Return True from a step on in the drill of a full disk."""
        return self.moment.get("where") == "full" and self.count >= self.moment["count"]

    def truncate(self, path: str, share: float) -> None:
        """Leave only the first part of a file that the program writes."""
        self.is_writing = True
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(file, int(os.fstat(file).st_size * share))
        os.close(file)
        self.is_writing = False

    def saver(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wrap a function that writes to its second argument, such as `torch.save`."""

        def save(*arguments: Any, **named: Any) -> Any:
            target: Any = arguments[1] if len(arguments) > 1 else named.get(name)
            path = self.in_checkpoints(target)
            if path is None or self.is_writing:
                return original(*arguments, **named)
            is_open = hasattr(target, "write")  # counted when it was opened
            nth = self.writes - 1 if is_open else self.writes
            if not is_open:
                self.before_write(path)
            self.is_writing = True
            try:
                result = original(*arguments, **named)
            finally:
                self.is_writing = False
            self.write("saved", rank=self.rank(), nth=nth)
            if self.is_full() or self.is_at("save", nth):
                if is_open:
                    target.flush()
                self.truncate(path, 0.5)
                if self.is_full():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                self.wait()
            return result

        save.__wrapped__ = original  # type: ignore[attr-defined]
        return save

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See files that are opened for writing or renamed, by Python's audit events."""
        if event == "open" and not self.is_writing and isinstance(arguments[2], int):
            writes = bool(arguments[2] & WRITING)
            path = self.in_checkpoints(arguments[0], writes)
            if path is None or arguments[2] & os.O_DIRECTORY:
                return
            if not writes:
                self.write("read", rank=self.rank(), path=path, line=self.line())
                return
            self.before_write(path)
            if self.is_full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if self.is_at("opened", self.writes - 1):
                self.truncate(path, 0)
                self.wait()
        elif event == "os.rename" and self.in_checkpoints(arguments[1]):
            if self.is_at("rename", self.renames):
                self.wait()
            self.write("rename", rank=self.rank(), nth=self.renames, path=os.fsdecode(arguments[1]))
            self.renames += 1
        elif event in REMOVING:
            self.in_checkpoints(arguments[0])

    def line(self) -> str:
        """File, line and text of the program's call that saves or loads."""
        import linecache

        frame: Any = sys._getframe(1)
        library = ("site-packages", "dist-packages", sys.prefix + "/lib", sys.base_prefix + "/lib")
        while frame is not None:
            name = frame.f_code.co_filename
            if name[0] != "<" and name != __file__ and not any(part in name for part in library):
                code = linecache.getline(name, frame.f_lineno).strip()
                return f"{name.removeprefix(os.getcwd() + '/')}:{frame.f_lineno}: {code}"
            frame = frame.f_back
        return ""


def watch_torch(watch: Watch) -> None:
    """See forwards, losses, optimizer steps and files of torch."""
    import torch
    from torch.optim import optimizer

    call, backward = torch.nn.Module.__call__, torch.autograd.backward
    following = torch.utils.data.dataloader._BaseDataLoaderIter.__next__

    def is_capturing() -> bool:
        ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return ready and torch.cuda.is_current_stream_capturing()

    def watched_call(module: Any, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or watch.depth or watch.in_backward or is_capturing():
            return call(module, *arguments, **named)
        watch.depth = 1
        try:
            if module.training and torch.is_grad_enabled():
                watch.before_forward((arguments, named))
            return call(module, *arguments, **named)
        finally:
            watch.depth = 0

    def watched_backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
        watch.in_backward = True
        try:
            backward(tensors, *arguments, **named)
        finally:
            watch.in_backward = False
        watch.after_backward(tensors)

    def watched_next(iterator: Any) -> Any:
        if not watch.in_step:
            watch.write("loader", rank=watch.rank())
            if watch.is_at("loader"):
                watch.wait()
        return following(iterator)

    def watched_scale(scaler: Any, outputs: Any) -> Any:
        watch.scaler = scaler if scaler.is_enabled() else None
        return scale(scaler, outputs)

    scale = torch.amp.GradScaler.scale
    torch.nn.Module.__call__ = watched_call  # type: ignore[assignment,method-assign]
    torch.autograd.backward = watched_backward
    torch.utils.data.dataloader._BaseDataLoaderIter.__next__ = watched_next  # type: ignore[assignment,method-assign]
    torch.amp.GradScaler.scale = watched_scale  # type: ignore[assignment,method-assign]
    torch.save = watch.saver(torch.save, "f")
    optimizer.register_optimizer_step_pre_hook(lambda each, *_: watch.before_step(each))
    optimizer.register_optimizer_step_post_hook(lambda *_: watch.after_step())


def watch_safetensors(watch: Watch) -> None:
    """See files of safetensors, which Python does not open itself."""
    module = sys.modules["safetensors.torch"]
    module.save_file = watch.saver(module.save_file, "filename")  # type: ignore[attr-defined]


def watch_requests(watch: Watch, module: str, sender: str, method: str) -> None:
    """See requests of a library before they are sent."""
    owner = getattr(sys.modules[module], sender)
    original = getattr(owner, method)

    def watched(*arguments: Any, **named: Any) -> Any:
        watch.before_request()
        return original(*arguments, **named)

    setattr(owner, method, watched)


class Finder:
    """Finds modules as usual, and calls a function after the import of some."""

    def __init__(self, after: dict[str, Callable[[], None]]) -> None:
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module without this finder; see `importlib.abc.MetaPathFinder`."""
        if name not in self.after:
            return None
        then = self.after.pop(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: Any) -> None:
                execute(module)
                then()

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Begin to watch this process; called by the drill's `sitecustomize`."""
    watch = Watch(json.loads(os.environ[SETTINGS]))
    after = {
        "torch": lambda: watch_torch(watch),
        "safetensors.torch": lambda: watch_safetensors(watch),
    }
    for requests in REQUESTS:
        after[requests[0]] = functools.partial(watch_requests, watch, *requests)
    sys.meta_path.insert(0, Finder(after))  # type: ignore[arg-type]
    sys.addaudithook(watch.audit)
