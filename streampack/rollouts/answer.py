"""Answer: a sequence that a sampler returns, with its values per token and per sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, type_in_words
from streampack.documents.blocks import offsets_of
from streampack.errors import ConfigError

#: Fields that the loader adds to batches.
SERIAL, AGE = "prompt_serial", "age"
_TAKEN = ("ids", "loss_mask", SERIAL, AGE)


class Ragged(NamedTuple):
    """Sets of values, one for each token, such as the ids that top-p sampling kept.

    Attributes:
        offsets: (T + 1,) int64; set t is ``values[offsets[t]:offsets[t + 1]]``.
        values: (V,) or (V, *shape).
    """

    offsets: Any
    values: Any


@explained
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A sequence to train on: a prompt and the answer to it.

    Args:
        ids: (T,) token ids of the whole sequence, the prompt included.
        loss_mask: (T,) true where a token counts in the loss, usually the sampled ones.
        logprobs: (T,) log-probabilities of the sampler, of each token given the ones before it.
        advantage: a number, or (T,) one per token.
        reward: as `advantage`.
        version: policy version that sampled it: an integer, a pair of the first and last one, or
            (T,) one per token. Batches have ``version_min`` and ``version_max`` per sequence.
        token_fields: further values by name, (T,) or (T, *shape), such as routed experts.
        document_fields: further numbers by name, one per sequence.
        ragged_fields: sets per token by name: a `Ragged`, or a list with a list or array for each
            token. Read them by `Step.ragged`.
        images: images of the sequence, usually the prompt's, in the order of their tokens in `ids`:
            the bytes, path or URL of each file. `Loader` decodes them with its processor.

    Attributes:
        ids: (T,) uint32. loss_mask: (T,) bool.
        token_fields: arrays by name, with `logprobs` and all else that is per token.
        document_fields: numpy numbers by name, with all else that is per sequence.
        ragged_fields: `Ragged` of arrays by name.
        images: bytes, paths and URLs.

    Raises:
        ConfigError: a value has another shape or type.
    """

    ids: Any
    loss_mask: Any
    logprobs: Any = None
    advantage: Any = None
    reward: Any = None
    version: Any = None
    token_fields: Mapping[str, Any] = field(default_factory=dict)
    document_fields: Mapping[str, Any] = field(default_factory=dict)
    ragged_fields: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[bytes | str] = ()

    def __post_init__(self) -> None:
        ids = _numbers("ids", self.ids)
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise _wrong("ids", "a flat list of at least one integer", ids)
        if ids.min() < 0 or ids.max() >= 1 << 32:
            raise _wrong("ids", "integers from 0 to 2**32 - 1", ids)
        token = {**self.token_fields}
        document = {**self.document_fields}
        for name in {*_TAKEN} & {*token, *document}:
            raise ConfigError(
                f'"{name}" is reserved, got a field "{name}".', "Rename the field.", setting=name
            )
        if self.logprobs is not None:
            token["logprobs"] = self.logprobs
        for name in ("advantage", "reward"):
            if (value := getattr(self, name)) is not None:
                (token if np.ndim(value) else document)[name] = value
        self._add_version(token, document)
        mask = _numbers("loss_mask", self.loss_mask)
        per_token = {name: _numbers(name, value) for name, value in token.items()}
        for name, array in {"loss_mask": mask, **per_token}.items():
            if array.shape[:1] != ids.shape or (name == "loss_mask" and array.ndim > 1):
                raise _wrong(name, f"one value for each of {len(ids)} ids", array)
        per_sequence = {name: _numbers(name, value) for name, value in document.items()}
        for name, array in per_sequence.items():
            if array.ndim:
                raise _wrong(name, "one number", array)
        ragged = {name: _ragged(name, sets, len(ids)) for name, sets in self.ragged_fields.items()}
        images = tuple(self.images) if isinstance(self.images, list | tuple) else (self.images,)
        for image in images:
            if not isinstance(image, bytes | str) or not image:
                raise ConfigError(
                    f"An image must be bytes, a path or a URL, got {type_in_words(image)}.",
                    "Pass the content of its file, encoded once for all answers of a prompt.",
                    setting="images",
                )
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "ids", ids.astype(np.uint32))
        object.__setattr__(self, "loss_mask", mask.astype(np.bool_))
        object.__setattr__(self, "token_fields", per_token)
        object.__setattr__(self, "document_fields", per_sequence)
        object.__setattr__(self, "ragged_fields", ragged)

    def _add_version(self, token: dict[str, Any], document: dict[str, Any]) -> None:
        if self.version is None:
            return
        versions = _numbers("version", self.version)
        pair = isinstance(self.version, tuple) and len(self.version) == 2
        if versions.ndim and not pair:
            token["version"] = versions
        if versions.dtype.kind not in "iu" or not versions.size:
            raise _wrong("version", "an integer, a pair of them, or one per token", versions)
        document["version_min"] = versions.min().astype(np.int64)
        document["version_max"] = versions.max().astype(np.int64)

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens in the loss, which never counts the first token of a sequence."""
        return int(np.count_nonzero(self.loss_mask[1:]))

    @property
    def newest_version(self) -> int | None:
        """The newest policy version that sampled a token of it, if known."""
        version = self.document_fields.get("version_max")
        return None if version is None else int(version)

    @property
    def columns(self) -> dict[str, str]:
        """Dtype and shape of each field, the same for all answers of a run."""
        per_token = {
            f"token_fields.{name}": f"{array.dtype}{list(array.shape[1:])}"
            for name, array in self.token_fields.items()
        }
        ragged = {
            f"ragged_fields.{name}": f"{sets.values.dtype}{list(sets.values.shape[1:])}"
            for name, sets in self.ragged_fields.items()
        }
        return (
            per_token
            | ragged
            | {
                f"document_fields.{name}": str(array.dtype)
                for name, array in self.document_fields.items()
            }
        )


def sequences_of(answers: Sequence[Answer | tuple[Answer, ...]]) -> list[Answer]:
    """Return the sequences of answers, of which one may be a tuple of several."""
    return [
        sequence
        for answer in answers
        for sequence in (answer if isinstance(answer, tuple) else (answer,))
    ]


def check_same_columns(before: Mapping[str, str], answer: Answer) -> None:
    """Raise `ConfigError` if an answer has other fields than an earlier one."""
    columns = answer.columns
    for name in sorted({*before, *columns}):
        if before.get(name) != columns.get(name):
            raise ConfigError(
                f'Every answer must have the same fields; "{name}" was '
                f"{before.get(name, 'absent')} and is {columns.get(name, 'absent')} now.",
                "Pass it with the same dtype and shape in every answer.",
                setting=name.partition(".")[2],
            )


def columns_of(answers: Mapping[int, Answer], *, with_images: bool = False) -> dict[str, Any]:
    """Return the arguments of `MicrobatchPlan.batches` for answers by their index."""
    first = next(iter(answers.values()), None)
    columns: dict[str, Any] = {
        "ids": {i: answer.ids for i, answer in answers.items()},
        "loss_mask": {i: answer.loss_mask for i, answer in answers.items()},
    }
    if with_images or any(answer.images for answer in answers.values()):
        columns["images"] = {i: answer.images for i, answer in answers.items()}
    for kind in ("token_fields", "document_fields"):
        names: Sequence[str] = [] if first is None else [*getattr(first, kind)]
        columns[kind] = {
            name: {i: getattr(answer, kind)[name] for i, answer in answers.items()}
            for name in names
        }
    return columns


def _ragged(name: str, sets: Any, count: int) -> Ragged:
    """Return the sets of `count` tokens as arrays."""
    if not isinstance(sets, Ragged):
        if not isinstance(sets, Sequence) or not all(hasattr(each, "__len__") for each in sets):
            raise ConfigError(
                f"{name} must be a list with a list of numbers for each id, got "
                f"{type_in_words(sets)}.",
                "Pass such a list, or rollouts.Ragged(offsets, values).",
                setting=name,
            )
        arrays = [
            _numbers(name, each) if len(each) or hasattr(each, "dtype") else np.zeros(0, np.int64)
            for each in sets
        ]
        offsets = offsets_of(np.array([*map(len, arrays)], dtype=np.int64))
        sets = Ragged(offsets, np.concatenate(arrays) if arrays else np.zeros(0, np.int64))
    offsets, values = _numbers(name, sets.offsets), _numbers(name, sets.values)
    if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu" or not values.ndim:
        raise _wrong(name, f"one set for each of {count} ids, with {count + 1} offsets", offsets)
    offsets = offsets.astype(np.int64)
    if offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise _wrong(name, "offsets from 0 to the number of values, in order", values)
    return Ragged(offsets, values)


def _numbers(name: str, value: Any) -> NDArray[Any]:
    """Return a value as an array; Python's floats become float32, its integers int64."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name} must be numbers, got {type_in_words(value)}: {error}",
            "Pass a list, an array, or a tensor on the CPU.",
            setting=name,
        ) from error
    if array.dtype.kind not in "biuf":
        raise _wrong(name, "numbers", array)
    if not hasattr(value, "dtype") and array.dtype == np.float64:
        array = array.astype(np.float32)
    return array


def _wrong(name: str, expected: str, array: NDArray[Any]) -> ConfigError:
    return ConfigError(
        f"{name} must be {expected}, got dtype {array.dtype} and shape {array.shape}.",
        "Pass the values of one sequence, aligned with its ids.",
        setting=name,
    )
