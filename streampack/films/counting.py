"""Processors that count the tokens of a film of a size, faster than they process films."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
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
        shape: tuple[int, ...] = ()
        if function is torch.cat and len(args) == 1:
            shape = _joined(args[0], **kwargs or {})
        elif function is torch.Tensor.__getitem__ and args[0].is_meta:
            shape = _chosen(*args)
        if shape:
            first = args[0][0] if function is torch.cat else args[0]
            return torch.empty(shape, dtype=first.dtype, device="meta")
        return function(*args, **(kwargs or {}))


def _chosen(values: torch.Tensor, indices: Any) -> tuple[int, ...]:
    """Return the shape of the frames with some indices (N,), or () to have PyTorch do it."""
    if not isinstance(indices, torch.Tensor) or indices.dim() != 1 or indices.dtype != torch.int64:
        return ()
    return (len(indices), *values.shape[1:])


def _joined(parts: Sequence[torch.Tensor], dim: int = 0, **others: Any) -> tuple[int, ...]:
    """Return the shape of tensors without values that are joined, or () to have PyTorch do it."""
    first = parts[0]
    rest = [*first.shape[:dim], *first.shape[dim + 1 :]]
    for part in parts:
        is_other = not part.is_meta or part.dtype != first.dtype or part.dim() != first.dim()
        if others or dim < 0 or is_other or [*part.shape[:dim], *part.shape[dim + 1 :]] != rest:
            return ()
    return (*first.shape[:dim], sum(part.shape[dim] for part in parts), *first.shape[dim + 1 :])


def counting(processor: Any, token: str) -> Any:
    """Return a copy of a processor of which the tokenizer is fast at runs of a special token."""
    copied = copy.copy(processor)
    copied.tokenizer = _Runs(processor.tokenizer, token)
    copied._check_special_mm_tokens = lambda *_, **__: None  # it searches the text for each token
    return copied


class Interleaved:
    """Token ids of a film with sound, by the processor's own order of the tokens of both.

    Args:
        processor: a processor of Qwen-Omni.
        tokens: number of tokens of the sound.

    Attributes:
        processor: a copy that is called for the film, and then sets `ids`.
        ids: token ids between the two tokens that mark a film.
    """

    def __init__(self, processor: Any, tokens: int) -> None:
        self.processor, self._tokens, self.ids = copy.copy(processor), tokens, np.zeros(0, np.int64)
        self.processor.replace_video_token = self._replaced
        # The order is written as a text, which is short if each token is one letter.
        self._letters, self._id = copy.copy(processor), np.zeros(1 << 7, dtype=np.int64)
        names = ("video_token", "audio_token", "audio_bos_token", "audio_eos_token")
        for letter, name in zip("vabe", names, strict=True):
            token = getattr(processor, name)
            self._id[ord(letter)] = processor.tokenizer.convert_tokens_to_ids(token)
            setattr(self._letters, name, letter)

    def _replaced(self, video_inputs: Any, video_idx: int, **settings: Any) -> str:
        sounds = {"num_audio_tokens": [self._tokens]}
        text = self._letters.replace_video_with_audio_token(
            video_inputs, video_idx, sounds, 0, **settings
        )
        self.ids = self._id[np.frombuffer(text.encode(), dtype=np.uint8)]
        token: str = self.processor.video_token
        return token


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
        short = np.array(encoded["input_ids"][0], dtype=np.int64)
        repeats = np.ones(len(short), dtype=np.int64)
        repeats[short == self._id] = runs
        ids = np.repeat(short, repeats)
        encoded["input_ids"], encoded["attention_mask"] = [ids], [np.ones_like(ids)]
        return encoded.convert_to_tensors(return_tensors)
