"""HTTP in front of the engine: routes, event streams, metrics, the process. Only this layer knows about connections."""
