"""How public checkpoints store a matrix: one small reader per kind, each turning stored rows into fp32 rows."""
