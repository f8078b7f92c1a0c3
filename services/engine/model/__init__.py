"""The decoder: layers in the order of ModelSpec.schedule over expanded weights and the live sequence's state."""
