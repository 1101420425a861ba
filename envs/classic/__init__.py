"""jaxrl's own classic-control environments, each equal to gymnasium's."""
