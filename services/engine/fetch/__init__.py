"""Making a model folder: download, verify, describe, rename into place. `python -m engine.fetch NAME` does it."""
