"""jaxrl's own MinAtar: the five games of Young & Tian (2019) as vectorised JAX."""
