"""Sources: where documents come from, a file or folder per format; above, what formats share.

Knows formats, and which of them a path has; it does not know tokenizers, rows or batches.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    "arrow": ['Arrow'],
    "base": ['LaneReader', 'Reading', 'Source'],
    "chat.source": ['Chat'],
    "infer": ['open'],
    "iterable.hf": ['HFStream'],
    "iterable.indexed": ['Items'],
    "iterable.source": ['Iterable'],
    "jsonl": ['JSONL'],
    "mds.source": ['MDS'],
    "megatron": ['MegatronIndexed'],
    "mixture": ['Mixture'],
    "parquet.source": ['Parquet'],
    "table": ['Table'],
    "tar.source": ['WebDataset'],
    "text": ['TextFiles'],
    "tokens": ['Tokens'],
})  # fmt: skip


def __getattr__(name, _inner=__getattr__):  # the storage of sources is named with them
    if name == "Storage":
        from streampack.storage.storage import Storage

        return Storage
    return _inner(name)


__all__ = [*__all__, "Storage"]
