"""What `scripts/demo.sh` runs: a corpus, an object store and a model that any machine has."""
