"""What a batch answers where it is taken for a dict, or for a sample that is to be collated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data._utils.collate import default_collate_fn_map

from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

_NO_DICT = (
    "A PackedBatch is no dict, as models need more than ids to keep documents apart. Write {}."
)


def no_item(batch: PackedBatch, name: Any) -> NoReturn:
    """Raise `TypeError`: fields are attributes."""
    field = name if isinstance(name, str) and name.isidentifier() else "input_ids"
    write = f"batch.{field}, or batch.hf(model=model) for a dict of what a model takes"
    raise TypeError(_NO_DICT.format(write))


def no_keys(batch: PackedBatch) -> NoReturn:
    """Raise `TypeError`: ``**batch`` is to be ``**batch.hf(model=model)``."""
    raise TypeError(_NO_DICT.format("model(**batch.hf(model=model))"))


def refuse_collating(kind: type) -> None:
    """Let a DataLoader that would join batches of this kind say what to write."""
    default_collate_fn_map[kind] = _refuse


def _refuse(batches: Any, *, collate_fn_map: Any = None) -> NoReturn:
    raise ConfigError(
        f"The DataLoader has batch_size={len(batches)} and joins batches.",
        "Those of a PackedDataset are whole already.",
        "Pass batch_size=None: DataLoader(dataset, batch_size=None).",
    )
