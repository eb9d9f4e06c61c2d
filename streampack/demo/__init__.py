"""What `streampack demo` is made of: a corpus, an object store and a model that any machine has."""
