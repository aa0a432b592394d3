"""Float64 NumPy definitions of what the project computes on MLX: slow, cache-free, and independent of its code."""
