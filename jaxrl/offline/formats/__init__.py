"""Importers of foreign formats: each yields the parts of episodes of a file.

An importer is a module with `iter_parts(path, settings)`.
"""
