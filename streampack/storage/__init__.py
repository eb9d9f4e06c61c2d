"""Files and objects: listed, downloaded, cached, read ahead, decompressed.

The package handles paths, retries and the cache directory, independent of file contents. Formats
call a `Storage` and read a `StoredFile`. The files, by their tasks:

- the interface: `storage`; `files`: open files, local ones by `mapping`; `file_info`: sizes,
  versions and URLs
- names: `listing`: patterns of users; `matching`: wildcards; `folders`: local ones;
  `remote_listing`: names in stores; `marks`: folders of tables, which are refused
- remote files: `remote_files`: look-ups, and servers without ranges; `ranged_file`: a file in
  blocks; `fetching`: a block, now or ahead; `plans`: which blocks come next, by `turns` of pieces
- requests: `ranges`: bytes, checked; `catalogs`: sizes and names; `clients`: signed requests to
  each kind of store; `wire`: HTTP; `filesystems`: fsspec; `remote`: versions, and limits of time;
  `first_fetch`: progress in the log
- the cache of a host: `blocks`; `room`: which of them go; `locks` between processes;
  `memory_blocks`: in place of files
- derived content: `decompression`; `decoded`: once for a host; `growing`: read while it is made
- failures: `retries`: attempts; `failures`: which are final; `threads` that wait for a store
"""
