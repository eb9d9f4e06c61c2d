"""Private names of streampack in a packer or source of one's own."""

from __future__ import annotations

from streampack.errors import ConfigError


def refuse_private_names(obj: object) -> None:
    """Raise `ConfigError` if an object of a user's class has a private name of its base class.

    Args:
        obj: a packer or a source; one of streampack's own passes.
    """
    kinds = type(obj).__mro__
    ours = [kind for kind in kinds if kind.__module__.startswith("streampack.")]
    private = {
        name
        for kind in ours
        for name in vars(kind)
        if name.startswith("_") and not name.startswith(("__", "_abc_"))
    }
    names = {name for kind in kinds if kind not in ours for name in vars(kind)}
    if len(ours) == 1:  # no class of streampack's has set attributes of the object
        names |= getattr(obj, "__dict__", {}).keys()
    if kinds[0] not in ours and (taken := sorted(private & names)):
        raise ConfigError(
            f"{kinds[0].__name__} has the name {taken[0]}, which its base class "
            f"{ours[0].__name__} uses itself.",
            "Give it another name.",
            setting=taken[0],
        )
