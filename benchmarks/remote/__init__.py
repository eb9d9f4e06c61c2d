"""Files in an S3 store that is far away; see `benchmarks.remote.__main__`."""

#: Modules by job.
JOBS = {
    "first": "first",
    "line": "line",
    "peers": "line",
    "hosts": "hosts",
    "epoch": "epoch",
    "second-epoch": "second_epoch",
    "starts": "starts",
    "mixture": "mixture",
    "images": "images",
    "processor": "processor",
}
