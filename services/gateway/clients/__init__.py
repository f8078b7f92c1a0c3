"""Callers of other services. Each owns one service's HTTP and turns its failures into ServiceErrors."""
