"""MediaSource: the common part of sources with films and of sources with sounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from streampack.arguments import one_of
from streampack.errors import ConfigError
from streampack.images.attachments import NOUNS
from streampack.images.media_reader import MediaColumns, MediaReader
from streampack.images.source import Images, names_in
from streampack.storage.storage import Storage


class MediaSource(Images):
    """Base of `Films` and `Sounds`.

    Attributes:
        kind: "video" or "audio".
        usual: default fields; a record has at most one of them.
        size: function from the numbers of `sizes` to a size; raises `ValueError`.
        sized_by: these numbers in words, in order.
        sized_more: further numbers, which `sizes` need not have.
        planner: class of the planner.
    """

    kind: ClassVar[str]
    usual: ClassVar[tuple[str, ...]]
    size: ClassVar[Any]
    sized_by: ClassVar[tuple[str, ...]]
    sized_more: ClassVar[tuple[str, ...]] = ()
    planner: ClassVar[type[Any]]

    def _open(
        self,
        arguments: Mapping[str, Any],
        fields: str | Sequence[str] | None,
        images: tuple[str, ...],
        **reader: Any,
    ) -> None:
        """Open the data.

        Args:
            arguments: of the class, by name.
            fields: fields of the media.
            images: fields of images.
            reader: further settings of the reader.

        Raises:
            ConfigError: arguments conflict, or the data lacks such fields.
        """
        one_of("count", arguments["count"], ("head", "packets"))
        sizes, folder, storage = arguments["sizes"], arguments["folder"], arguments["storage"]
        numbers = (len(self.sized_by), len(self.sized_by) + len(self.sized_more))
        if sizes is not None and (isinstance(sizes, str) or len(sizes) not in numbers):
            raise ConfigError(
                f"sizes must be {len(self.sized_by)} names of fields, got {sizes!r}.",
                f"Name the fields of {', '.join(self.sized_by)}, in this order.",
                setting="sizes",
            )
        columns = MediaColumns(
            self.kind,
            names_in(fields, self.usual),
            fields is None,
            sizes,
            self.size,
            arguments["count"] == "packets",
            arguments["placeholder"],
        )
        media_reader = MediaReader(
            arguments["text"],
            images,
            folder=None if folder is None else os.fspath(folder),
            shape=arguments["shape"],
            storage=Storage() if storage is None else storage,
            others=columns,
            **reader,
        )
        template, kwargs = arguments["template"], arguments["template_kwargs"]
        self._read(arguments["data"], media_reader, template, kwargs, arguments["reading"], storage)

    def media_planners(self, processor: Any) -> dict[str, Any]:
        """Return the planner of the media for a processor."""
        return {self.kind: self.planner(processor)}

    def describe(self) -> dict[str, Any]:
        """Add the placeholder."""
        reader = self.reader
        assert isinstance(reader, MediaReader)
        assert reader.others is not None
        return {**super().describe(), f"{NOUNS[self.kind]}s": reader.others.placeholder}
