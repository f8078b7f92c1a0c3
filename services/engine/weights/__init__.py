"""From a file to tensors in the arena: `checkpoint` reads, `schema` says what a model needs, `binding` loads."""
