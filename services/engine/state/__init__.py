"""What the engine remembers of the live sequence: keys and values now, recurrent state beside them later."""
