"""Runs the stack without Docker: environment, embedded Valkey, engine, gateway, one log, clean stop.

No third-party code: everything here runs on the bare Python that started `./soloist`, before any package is installed;
only gpu_probe runs inside the virtual environment.
"""
