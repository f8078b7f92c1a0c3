"""What a model takes of a card before a byte is allocated: `python -m engine.plan`. Owns the answer, no memory."""
