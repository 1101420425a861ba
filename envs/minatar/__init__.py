"""MinAtar in JAX: the five games of Young & Tian (2019), vectorized."""
