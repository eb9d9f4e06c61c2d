"""streampack: remote shards in, packed GPU-ready batches out, every token exactly once.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
`streampack.packing` loads no torch and worker processes load only what a lane needs.
"""

import lazy_loader

_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name):
    if name in __all__ or not name[:1].isupper():
        return _import(name)
    from streampack.leaves import NO_NAME, load

    raise load(NO_NAME)(name)


__version__ = "0.1.0"
