"""One request from prompt to terminal event: prefill cuts, sampling, the loop. Knows executors only by protocol."""
