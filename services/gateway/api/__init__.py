"""HTTP towards clients: routes, the outermost layer, limits, status codes. The only place that knows status codes."""
