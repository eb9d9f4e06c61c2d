"""Documents of objects in memory, of iterables and of streams of other libraries."""
