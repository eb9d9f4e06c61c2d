"""The errors streampack raises: each states a fact and a remedy."""

from __future__ import annotations

from textwrap import shorten
from typing import Literal

#: What the failure of a store means; "transient" ones were tried again.
StoreFailure = Literal["missing", "denied", "transient", "other"]


class StreampackError(Exception):
    """Base of every error raised on purpose.

    Args:
        fact: what is the case, a sentence that names the document, shard or field.
        remedy: what the reader can do about it, a sentence.
        setting: the name of the argument that it is about.
        path: the file or object.
        document: the name of the document, as in "row 7 of part-3.parquet".

    Both are the exception's ``args``, so it survives pickling between processes.
    """

    def __init__(
        self,
        fact: str,
        remedy: str = "",
        *,
        setting: str | None = None,
        path: str | None = None,
        document: str | None = None,
    ) -> None:
        super().__init__(fact, remedy)
        self.setting = setting
        self.path = path
        self.document = document
        self.fact = fact
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.fact, self.remedy) if part)


class ConfigError(StreampackError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class MissingPackageError(ConfigError, ImportError):
    """A package that is needed, and is not installed."""


class ContentError(StreampackError, ValueError):
    """A document or shard whose content is wrong; `on_error="skip"` steps over it.

    `shard` is the shard's number in the manifest, `index` the first affected document in it (in
    the unit of `Documents.origin`), and `rest_of_shard` says that nothing after it can be read.
    """

    def __init__(
        self,
        fact: str,
        remedy: str = "",
        shard: int = -1,
        index: int = 0,
        rest_of_shard: bool = False,
        *,
        setting: str | None = None,
        path: str | None = None,
        document: str | None = None,
    ) -> None:
        super().__init__(fact, remedy, setting=setting, path=path, document=document)
        self.args = (fact, remedy, shard, index, rest_of_shard)
        self.shard = shard
        self.index = index
        self.rest_of_shard = rest_of_shard

    def of_source(self, name: str) -> ContentError:
        """The same, naming the source of a mixture."""
        return ContentError(
            f'In source "{name}": {self.fact}',
            *self.args[1:],
            setting=self.setting,
            path=self.path,
            document=self.document,
        )


class PlanError(StreampackError, ValueError):
    """A packing plan that breaks a rule of `streampack.packing.check_plan`."""


class RankError(StreampackError, RuntimeError):
    """Another process of the job died, stopped answering, or runs something else."""


class StateError(StreampackError, ValueError):
    """A saved state that does not belong to this dataset, or data that changed under it."""


class StorageError(StreampackError, OSError):
    """Reading or writing storage failed, after the retries that were allowed.

    `failure` says why; the error of the file system is the cause (``__cause__``).
    """

    failure: StoreFailure = "other"

    def __str__(self) -> str:  # OSError formats two arguments as an errno pair otherwise
        return StreampackError.__str__(self)


class WorkerError(StreampackError, RuntimeError):
    """A worker process died or stopped answering."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or as many of its words as 200 characters hold."""
    return shorten(str(error).strip().partition("\n")[0], 200, placeholder=" ...")
