"""The engine's settings: the one file of this service that reads the environment. Owns names and defaults."""

import os


def read_environment() -> dict[str, str]:
    """A copy of the environment, for resolve_home and for the environment of child processes."""
    return dict(os.environ)
