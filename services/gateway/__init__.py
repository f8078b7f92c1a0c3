"""The gateway: owns all text between agents and the engine (dialects, templates, queue), and no weights."""
