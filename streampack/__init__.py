"""streampack: remote shards in, packed GPU-ready batches out, every token exactly once.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
`streampack.packing` loads no torch and worker processes load only what a lane needs.
"""

from streampack._lazy import public_names

_import, __dir__, __all__ = public_names(__name__, __file__)


def __getattr__(name):
    if name in __all__ or not name[:1].isupper():
        return _import(name)
    from streampack.wrong_calls.imports import no_name

    raise no_name(name)


__version__ = "0.1.0"
