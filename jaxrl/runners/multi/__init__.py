"""Runners of several agents in Python environments."""
