"""Requests to remote stores, one attempt or several, without a cache.

- bytes: `ranges`, checked for length and version; `clients`: signed requests to each kind of store;
  `wire`: HTTP, over `connections`; `filesystems`: fsspec
- names and sizes: `catalogs`; `versions`
- failures: `retries`: attempts; `failures`: which are final; `pace`: limits of time; `first_fetch`:
  progress in the log
"""
