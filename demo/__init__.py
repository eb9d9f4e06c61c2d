"""Parts of `scripts/demo.sh`: a corpus, an object store and a model that any machine has."""
