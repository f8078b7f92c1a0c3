"""Centres of the KV cache: mean keys and values of a converted model over text, measured layer by layer."""
