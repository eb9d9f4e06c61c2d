"""Extension of griffe for the site's reference: writes out arguments that a TypedDict lists.

``**options: Unpack[RecordFileOptions]`` becomes one keyword argument per key, as in help().
"""

from __future__ import annotations

from typing import Any

import griffe


class WrittenOut(griffe.Extension):
    """Replaces ``**name: Unpack[SomeTypedDict]`` in signatures by the keys of the TypedDict."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change all functions of a package, once it is loaded."""
        self._walk(pkg, set())

    def _walk(self, found: griffe.Module | griffe.Class, seen: set[str]) -> None:
        for member in found.members.values():
            if member.is_alias or member.path in seen:
                continue
            seen.add(member.path)
            if isinstance(member, griffe.Function):
                self._write_out(member)
            elif isinstance(member, (griffe.Module, griffe.Class)):
                self._walk(member, seen)

    def _write_out(self, function: griffe.Function) -> None:
        for one in [*function.parameters]:
            annotation = one.annotation
            if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Unpack":
                keys = function.modules_collection[annotation.slice.canonical_path]
                others = [other for other in function.parameters if other is not one]
                named = griffe.ParameterKind.keyword_only
                begin = sum(other.kind is not named for other in others)
                function.parameters = griffe.Parameters(
                    *others[:begin],
                    *(
                        griffe.Parameter(
                            name,
                            annotation=attribute.annotation,
                            kind=named,
                            default="None",
                        )
                        for name, attribute in keys.all_members.items()
                        if attribute.is_attribute
                    ),
                    *others[begin:],
                )
