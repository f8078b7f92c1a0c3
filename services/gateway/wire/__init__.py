"""The APIs clients speak: bodies to ChatRequest, replies to JSON and server-sent events. Owns shapes, sends nothing."""
