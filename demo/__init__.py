"""What `streampack demo` runs: a corpus, an object store and a model that any machine has."""
