"""What crosses a process boundary: messages, errors, telemetry names. Pure data; no service, torch or FastAPI."""
