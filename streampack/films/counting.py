"""Processors that count the tokens of a film of a size, faster than they process films."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_UNCHANGED = {
    torch.clamp,
    torch.round,
    torch.Tensor.clamp,
    torch.Tensor.clamp_,
    torch.Tensor.round,
    torch.Tensor.round_,
}


class Shapes(TorchFunctionMode):
    """Leave out functions that keep the shape and kind of tensors without values.

    PyTorch evaluates some of them in Python, in milliseconds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _UNCHANGED and args[0].is_meta:
            return args[0]
        return function(*args, **(kwargs or {}))


def counting(processor: Any, token: str) -> Any:
    """Return a copy of a processor of which the tokenizer is fast at runs of a special token."""
    copied = copy.copy(processor)
    copied.tokenizer = _Runs(processor.tokenizer, token)
    return copied


class _Runs:
    """A tokenizer that encodes each run of a special token as one of them, and repeats its id."""

    def __init__(self, tokenizer: Any, token: str) -> None:
        self._tokenizer, self._id = tokenizer, tokenizer.convert_tokens_to_ids(token)
        self._token, self._run = token, re.compile(f"(?:{re.escape(token)})+")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: list[str], return_tensors: str | None = None, **settings: Any) -> Any:
        runs = [len(run[0]) // len(self._token) for run in self._run.finditer(text[0])]
        encoded = self._tokenizer([self._run.sub(self._token, each) for each in text], **settings)
        if {*encoded} != {"input_ids", "attention_mask"}:
            return self._tokenizer(text, return_tensors=return_tensors, **settings)
        ids: list[int] = []
        for each in encoded["input_ids"][0]:
            ids += [each] * (runs.pop(0) if each == self._id else 1)
        encoded["input_ids"], encoded["attention_mask"] = [ids], [[1] * len(ids)]
        return encoded.convert_to_tensors(return_tensors)
