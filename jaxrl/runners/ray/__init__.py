"""Env runners and learners as Ray actors, imported only if a config uses them."""
