"""`streampack where`: where a run is, from the states it saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from streampack.cli.corpus import reopen_corpus
from streampack.cli.options import AsJson
from streampack.cli.saved import one_state
from streampack.cli.say import plain_table, say
from streampack.errors import ConfigError, StreampackError
from streampack.lane.state import damaged
from streampack.reading.sharded import ShardedSource
from streampack.run.place import LanePlace, SourcePlace, lane_places, members, run_words

LANES_SHOWN = 32  # one by one; more are summarised
MESSAGES_SHOWN = 10
#: Numbers of a lane, by the heads of their columns.
FIGURES = {
    "batches": "batches",
    "docs\nwaiting": "waiting",
    "docs\nread again": "read",
    "skipped": "skipped",
}
WIDTH = 100  # columns of the table where it does not go to a terminal


def where(
    states: Annotated[
        list[Path],
        typer.Argument(metavar="STATE.json...", help="A saved state, or one of every rank."),
    ],
    source: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]PATH",
            help="Where the corpus lies, to name its shards; NAME is a mixture's source.",
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Say in words where a run is: the next batch, and what every lane reads and holds."""
    state = one_state(states)
    try:
        _show(state, source, as_json)
    except StreampackError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise damaged(f"What the state says cannot be shown ({type(error).__name__}).") from error


def _show(state: dict[str, Any], source: Sequence[str], as_json: bool) -> None:
    corpora = _corpora(source, members(state["fingerprint"]))
    places = lane_places(state, corpora)
    if as_json:
        head = {name: state[name] for name in ("next_batch", "stepped_over", "fingerprint")}
        print(json.dumps({**head, "lanes": [asdict(place) for place in places]}))
        return
    console = Console()
    for sentence in run_words(state):
        say(console, sentence)
    for sentence in _counted(places):
        say(console, sentence)
    begun = [place for place in places if place.sources]
    if begun:
        table = _lanes(begun) if len(begun) <= LANES_SHOWN else _summary(begun)
        wide = console if console.is_terminal else Console(width=WIDTH)
        wide.print(table)
    messages = [f"lane {place.lane}: {text}" for place in places for text in place.messages]
    for message in messages[:MESSAGES_SHOWN]:
        say(console, f"Skipped in {message}")
    if len(messages) > MESSAGES_SHOWN:
        say(console, f"... and {len(messages) - MESSAGES_SHOWN:,} more.")


def _corpora(
    given: Sequence[str], described: dict[str | None, dict[str, Any]]
) -> dict[str | None, ShardedSource]:
    """The sources whose shards can be named."""
    corpora: dict[str | None, ShardedSource] = {}
    for text in given:
        name: str | None = None
        path = text
        if None not in described:
            name, _, path = text.partition("=")
        if name not in described or not path:
            names = ", ".join(map(str, described))
            raise ConfigError(
                f'--source is "{text}", and the run mixes {names}.',
                "It does not say which of them lies there.",
                f"Use --source {next(iter(described))}=PATH.",
            )
        corpora[name] = reopen_corpus(path, described[name])
    return corpora


def _counted(places: list[LanePlace]) -> list[str]:
    """How many lanes have not begun, or have ended, if any."""
    fresh = sum(not place.sources for place in places)
    ended = sum(place.ended for place in places)
    return [
        *([f"Lanes that have not begun: {fresh:,} of {len(places):,}."] if fresh else []),
        *([f"Lanes that have read everything: {ended:,} of {len(places):,}."] if ended else []),
    ]


def _table(columns: Sequence[str]) -> Table:
    table = plain_table()
    for name in columns:
        words = name in ("source", "reads again from", "")
        justify: JustifyMethod = "left" if words else "right"
        table.add_column(name, justify=justify, no_wrap=not words, overflow="fold")
    return table


def _lanes(places: list[LanePlace]) -> Table:
    """A line for each lane, and each source of a mixture."""
    mixed = places[0].sources[0].name is not None
    of_source = ["source", "tokens\ndrawn"] if mixed else []
    table = _table(["lane", *FIGURES, *of_source, "epoch", "reads again from"])
    for place in places:
        figures = [str(place.lane), *(f"{getattr(place, name):,}" for name in FIGURES.values())]
        for source in place.sources:
            what = "\n".join(source.words)
            if source.offset:
                what += f"\nand {source.offset:,} documents on"
            own = [escape(str(source.name)), f"{source.tokens or 0:,}"] if mixed else []
            epoch = "ended" if source.ended else str(source.epoch)
            table.add_row(*figures, *own, epoch, escape(what))
            figures = [""] * len(figures)
    return table


def _summary(places: list[LanePlace]) -> Table:
    """Of many lanes: least, most and all."""
    table = _table(["", "least", "most", "all lanes"])
    figures: dict[str, list[int]] = {
        head.replace("docs\n", "documents "): [getattr(place, name) for place in places]
        for head, name in FIGURES.items()
    }
    by_name: dict[str | None, list[SourcePlace]] = {}  # a lane may lack one that was added late
    for place in places:
        for source in place.sources:
            by_name.setdefault(source.name, []).append(source)
    for name, own in by_name.items():
        of = "" if name is None else f" of {name}"
        figures[f"epoch{of}"] = [source.epoch for source in own]
        if name is not None:
            figures[f"tokens drawn before{of}"] = [source.tokens or 0 for source in own]
    for what, values in figures.items():
        whole = "" if what.startswith("epoch") else f"{sum(values):,}"
        table.add_row(escape(what), f"{min(values):,}", f"{max(values):,}", whole)
    return table
