"""The engine: token ids in, token events out, one sequence. Owns the device's memory; knows no text and no queue."""

VERSION = "0.1.0"
