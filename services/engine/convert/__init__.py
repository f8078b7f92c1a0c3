"""A public checkpoint becomes an artifact: stream, quantise, describe, rename. `python -m engine.convert` does it."""
