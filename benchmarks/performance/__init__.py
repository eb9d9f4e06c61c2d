"""The tables and pictures of docs/benchmarks.md, one file per part.

A part is a module with `measure(Options) -> dict`, whose figures go into one JSON file, and
`table(figures) -> str` and `draw(figures, path)`, which need nothing else.
"""
