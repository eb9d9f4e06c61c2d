"""Mixture: several sources in given shares of the tokens.

Shares count tokens, and the number of a document's tokens is known only after it is tokenized. So
a mixture only declares the sources and their shares; the `MixedStream` of every lane mixes them,
and reads each source through its own stream.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from streampack.arguments import explained, one_of, real_number, whole_number
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError, StateError
from streampack.files.file_source import FileSource
from streampack.mixtures.token_shares import ONE, TokenShares, Weights, checked_weights, tempered
from streampack.mixtures.weight_channel import WeightChannel
from streampack.packing.rng import derive_seed
from streampack.sources.base import LaneReader, Portion, Source
from streampack.sources.resolve import as_source
from streampack.threads import in_threads


class Mixture(Source):
    """Several sources, mixed by tokens.

    Every lane draws a few documents at a time (a quantum) from one source. In any lane, at any
    time, the tokens drawn from a source differ from its target by one quantum at most. Documents
    carry the index of their source, its position in `sources`, as ``origin["source"]``; batches
    have it as `source_ids` and in their provenance.

    Args:
        sources: sources by name, of any type that `PackedDataset` takes. Texts and token ids may be
            mixed; texts are tokenized with the tokenizer of the dataset. Add new ones at the end,
            so that the others keep their indices.
        weights: relative shares of the tokens by name; or pairs ``(tokens of the run, weights)``
            from 0 on, each of which begins a phase with these weights. A lane estimates the tokens
            of the run as its own times the number of lanes.
        transition: change of weights from one pair to the next: "step" changes them at the next
            pair; "linear" moves them towards it all the way. After the last they are constant.
        temperature: without weights: shares in proportion to size ** (1 / temperature), where size
            is `estimate_tokens()`. 1 (the default) is proportional; a larger value makes the shares
            more even.
        epochs: passes over a source, by name; None is endless. Sources that are not named follow
            the run's `epochs`.
        at_end: policy of a lane when a source ends there: "share" gives its weight to the others;
            "stop" ends the lane and leaves the remaining documents of the others unread. In a run
            with finite `epochs` a lane also ends once only endless sources are left.
        quantum_documents: documents drawn at once, at most; a quantum also ends when it has 32,768
            tokens.

    Raises:
        ConfigError: there is no source, a source is itself a mixture, or weights name other sources
            or cannot be shares.
    """

    @explained
    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
        transition: Literal["step", "linear"] = "step",
        temperature: float | None = None,
        epochs: Mapping[str, int | None] | None = None,
        at_end: Literal["share", "stop"] = "share",
        quantum_documents: int = 32,
    ) -> None:
        _check_sources(sources)
        self.sources: dict[str, Source] = {}
        for name, source in sources.items():
            with named_in_errors(name):
                self.sources[name] = as_source(source)
        for name, source in self.sources.items():
            if isinstance(source, Mixture):
                raise ConfigError(
                    f'The source "{name}" is a Mixture itself.',
                    "Name all sources in one Mixture, with the products of their weights.",
                    setting="sources",
                )
        _check_choices(at_end, transition, temperature, weights)
        self.transition = transition
        self._knots = None if weights is None else checked_weights(weights, list(self.sources))
        self._temperature = 1.0 if temperature is None else float(temperature)
        self._shares: TokenShares | None = None
        self._epochs = _check_epochs(epochs, list(self.sources))
        self.at_end = at_end
        self.quantum_documents = whole_number("quantum_documents", quantum_documents)
        members, tokenized = self.sources.values(), []
        for name, source in self.sources.items():
            with named_in_errors(name):  # lists files
                tokenized.append(source.tokenized)
        self.tokenized = all(tokenized)
        overflows = {source.overflow for source in members}
        self.overflow = overflows.pop() if len(overflows) == 1 else "drop"
        self.once = any(source.once for source in members)

    _mixes = True

    @property
    def _parts(self) -> dict[str, Source]:
        return self.sources

    def __repr__(self) -> str:
        return f"Mixture({', '.join(f'{name}={s!r}' for name, s in self.sources.items())})"

    @property
    def shares(self) -> TokenShares:
        """The sources' shares of the tokens, in the order of `sources`.

        Raises:
            ConfigError: there are no weights, and the size of a source is unknown.
        """
        if self._shares is None:
            knots = self._knots
            if knots is None:
                knots = [(0, tempered(self._sizes(), self._temperature))]
            shares = TokenShares.of_weights(knots)
            self._shares = shares.in_steps() if self.transition == "step" else shares
        return self._shares

    def _sizes(self) -> list[int]:
        sizes = []
        for name, source in self.sources.items():
            size = source.estimate_tokens()
            if not size:
                raise ConfigError(
                    f'The size of the source "{name}" ({source._kind}) is '
                    f"{'unknown' if size is None else size}.",
                    "Pass weights=, one for every source.",
                    setting="weights",
                )
            sizes.append(size)
        return sizes

    def source_epochs(self, epochs: int | None) -> tuple[int | None, ...]:
        """Return the passes over each source in a run of `epochs` epochs; None is endless."""
        return tuple(self._epochs.get(name, epochs) for name in self.sources)

    def _leaves(self) -> list[str]:
        each = (name for source in self.sources.values() for name in source._leaves())
        return [*dict.fromkeys([*each, "mixture"])]

    def _portions(self, epochs: int | None) -> dict[str, Portion]:
        knots = [shares for _, shares in self.shares.knots]
        most = [max(shares) for shares in zip(*knots, strict=True)]
        each, whole = self.source_epochs(epochs), max(sum(most), ONE)
        return {
            name: Portion(part._inner, passes, share, whole)
            for (name, part), passes, share in zip(self.sources.items(), each, most, strict=True)
        }

    def _check_epochs(self, epochs: int | None, shuffle: bool) -> None:
        each = self.source_epochs(epochs)
        for (name, source), passes in zip(self.sources.items(), each, strict=True):
            with named_in_errors(name):
                source._check_epochs(passes, shuffle)
        if epochs is not None and None not in self._epochs.values():
            return
        if epochs is None and None not in each:
            raise ConfigError(
                "The run is endless (epochs=None), and every source of the mixture ends.",
                "Leave out epochs= of the dataset, or make a source endless.",
                setting="epochs",
            )
        if epochs is not None and all(passes is None for passes in each):
            raise ConfigError(
                f"The run has epochs={epochs}, and every source of the mixture is endless.",
                "Pass epochs=None to the dataset for an endless run, or give a source its epochs.",
                setting="epochs",
            )
        last = self.shares.knots[-1][1]
        for name, passes, share in zip(self.sources, each, last, strict=True):
            if epochs is not None and passes is not None and not share:
                raise ConfigError(
                    f'The source "{name}" ends, but its weight comes to 0, and others are endless.',
                    "Give it a weight above 0 to the end, make it endless too, or leave it out.",
                    setting="weights",
                )

    # ------------------------------------------------------------------ as a source

    def _with_fields(self, types: FieldSpec) -> Mixture:
        copied = copy.copy(self)
        copied.sources = {}
        for name, part in self.sources.items():
            with named_in_errors(name):
                copied.sources[name] = part._with_fields(types)
        return copied

    def _live(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return WeightChannel(values)

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> Mixture:
        saved: Mapping[str, Any] = described.get("sources", {})
        sources = {
            n: s._as_saved(saved[n], how) if n in saved else s for n, s in self.sources.items()
        }
        if all(sources[name] is source for name, source in self.sources.items()):
            return self
        copied = copy.copy(self)
        copied.sources, copied._shares = sources, None  # shares may depend on the sizes of sources
        return copied

    @property
    def grouped(self) -> bool:
        return any(part.grouped for part in self.sources.values())

    @property
    def _several(self) -> bool:
        return any(part._several for part in self.sources.values())

    def prepare(self) -> None:
        def prepare(name: str) -> None:
            with named_in_errors(name):
                self.sources[name].prepare()

        of_files = [name for name, s in self.sources.items() if isinstance(s._inner, FileSource)]
        for name in self.sources:
            if name not in of_files[1:]:  # the first makes a connection that the others use
                prepare(name)
        in_threads(prepare, of_files[1:])
        _ = self.shares

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        raise ConfigError(
            "A Mixture itself cannot be read.",
            "Pass it to PackedDataset, or read its `sources` one by one.",
            setting="source",
        )

    @property
    def _hints(self) -> bool:  # type: ignore[override]
        """True if any source is told."""
        return any(source._inner._hints for source in self.sources.values())

    def _check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        for number, (name, source) in enumerate(self.sources.items()):
            with named_in_errors(name):
                source._check_lanes(n, seed=source_seed(seed, number), shuffle=shuffle)

    def max_lanes(self) -> int | None:
        most = [source.max_lanes() for source in self.sources.values()]
        return min((lanes for lanes in most if lanes is not None), default=None)

    def _reader_bytes(self) -> int:
        return sum(source._reader_bytes() for source in self.sources.values())

    def estimate_tokens(self) -> int | None:
        sizes = [source.estimate_tokens() for source in self.sources.values()]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def document_name(self, origin: np.void) -> str:
        name, source = list(self.sources.items())[int(origin["source"])]
        return f'{source.document_name(origin)} of source "{name}"'

    def describe(self) -> dict[str, Any]:
        sources = {
            name: {
                "number": number,
                "epochs": self._epochs.get(name, "the run's"),
                **source.describe(),
            }
            for number, (name, source) in enumerate(self.sources.items())
        }
        return {
            "kind": "Mixture",
            "sources": sources,
            "shares": [[at, list(shares)] for at, shares in self.shares.knots],
            "at_end": self.at_end,
            "quantum_documents": self.quantum_documents,
        }


@contextmanager
def named_in_errors(name: str) -> Iterator[None]:
    """Name this source of a mixture in the fact of a `ConfigError` that is raised inside."""
    try:
        yield
    except ConfigError as error:
        error.fact = f'In source "{name}": {error.fact}'
        error.args = (error.fact, error.remedy)
        raise


def earlier_mixture(
    mixture: Mixture, saved: Mapping[str, Any], current: Mapping[str, Any]
) -> Mixture:
    """Return the mixture of a saved state, for a run with additional sources in its mixture.

    Args:
        mixture: the mixture of this run.
        saved, current: `source` in the fingerprints of the state and of this run.

    Raises:
        StateError: the state was not saved with a mixture, or one of its sources has changed.
    """
    if saved["kind"] != current["kind"]:
        raise StateError(
            f"The state was saved with the source {dict(saved)!r:.200}, and now it is a Mixture.",
            "Begin a run to which sources may be added with a Mixture.",
        )
    then, now = saved["sources"], current["sources"]
    names = [name for name in then if name in now]
    earlier = copy.copy(mixture)
    earlier.at_end, earlier.quantum_documents = saved["at_end"], saved["quantum_documents"]
    kept = [i for i, name in enumerate(then) if name in now]
    knots = [(at, tuple(shares[i] for i in kept)) for at, shares in saved["shares"]]
    earlier.sources = {
        name: mixture.sources[name]._as_saved(then[name], "before") for name in names
    }
    for name in names:
        described = now[name]
        if earlier.sources[name] is not mixture.sources[name]:  # a later version of a table
            of_run = {field: described[field] for field in ("number", "epochs", "tokenizer")}
            described = {**of_run, **earlier.sources[name].describe()}
        for field in sorted(map(str, {**then[name], **described})):
            before, value = then[name].get(field), described.get(field)
            if before != value:
                raise StateError(
                    f"`source.sources.{name}.{field}` was {before!r:.200} when the state was saved "
                    f"and is {value!r:.200} now.",
                    "Leave the sources of the state as they were, in their order, and add new ones "
                    "after them.",
                )
    earlier._shares = TokenShares(tuple(knots))
    return earlier


def source_seed(seed: int, number: int) -> int:
    """Return a seed per source, so that sources with equally many shards differ in their order."""
    return derive_seed(seed, 4, number) if number else seed


def sources_of(source: Source) -> tuple[Source, ...]:
    """Return the sources of a mixture in the order of their indices; any other source alone."""
    return tuple(source.sources.values()) if isinstance(source, Mixture) else (source,)


def _check_sources(sources: Any) -> None:
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigError(
            f"The sources of a Mixture must be a dict by name, got {sources!r:.80}.",
            'Pass a dict: Mixture({"web": ..., "code": ...}, weights={"web": 0.7, "code": 0.3}).',
            setting="sources",
        )
    for name in sources:
        if not isinstance(name, str) or not name:  # states store names as strings
            raise ConfigError(
                f"A source of a mixture must have a string as its name, got {name!r}.",
                "Use a string.",
                setting="sources",
            )


def _check_choices(at_end: str, transition: str, temperature: Any, weights: Any) -> None:
    one_of("at_end", at_end, ("share", "stop"))
    one_of("transition", transition, ("step", "linear"))
    if temperature is None:
        return
    if weights is not None:
        raise ConfigError(
            f"Only one of temperature and weights may be set, got temperature={temperature!r}.",
            "Leave out one of them.",
            setting="temperature",
        )
    real_number("temperature", temperature, least=0.001)


def _check_epochs(
    epochs: Mapping[str, int | None] | None, names: list[str]
) -> dict[str, int | None]:
    checked: dict[str, int | None] = {}
    if epochs is None:
        return checked
    if not isinstance(epochs, Mapping):
        raise ConfigError(
            f"epochs of a Mixture must be a dict by name, got {epochs!r:.80}.",
            f'Pass a dict by name, epochs={{"{names[0]}": 2}}; for all sources, '
            "PackedDataset(mixture, epochs=2).",
            setting="epochs",
        )
    for name, passes in epochs.items():
        if name not in names:
            raise ConfigError(
                f'epochs must name sources of the mixture, got "{name}".',
                f"The sources are {', '.join(names)}.",
                setting="epochs",
            )
        if passes is not None:
            passes = whole_number(f'epochs["{name}"]', passes, otherwise="or None (endless)")
        checked[name] = passes
    return checked
