"""Digests of tensors and of random generators."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


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
