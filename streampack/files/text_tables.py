"""Tables of text, such as CSV, which are not read because they declare no types."""

from __future__ import annotations

from streampack.names.listing import has_ending


def converted_by_pyarrow(path: str) -> str:
    """Return the lines that convert a table of text, which declares no types; "" for others."""
    for ending, mark in ((".csv", ","), (".tsv", "\t")):
        if has_ending(path, tuple(f"{ending}{codec}" for codec in ("", ".gz", ".bz2", ".zst"))):
            target = path[: path.lower().rindex(ending)] + ".parquet"
            return (
                "It declares no types; convert it, and pass the new file:\n"
                "from pyarrow import csv, parquet\n"
                f"form = csv.ParseOptions(delimiter={mark!r}, newlines_in_values=True)\n"
                f"parquet.write_table(csv.read_csv({path!r}, parse_options=form), {target!r})"
            )
    return ""
