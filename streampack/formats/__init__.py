"""Formats of files, a module or folder each; `sources.formats` lists them."""
