"""Bytes of local and remote files: mapped, cached, read ahead, decompressed.

The package handles the cache directory and the order of fetching, independent of file contents.
Formats call a `Storage` and read a `StoredFile`. Names are found by `streampack.names`, and stores
asked by `streampack.remote`. The files, by their tasks:

- the interface: `storage`; `files`: open files, local ones by `mapping`
- remote files: `remote_files`: look-ups, and servers without ranges; `ranged_file`: a file in
  blocks; `fetching`: a block, now or ahead; `plans`: which blocks come next, by `turns` of pieces
- the cache of a host: `blocks`; `room`: which of them go; `locks` between processes;
  `memory_blocks`: in place of files
- derived content: `decompression`; `decoded`: once for a host; `growing`: read while it is made
"""
