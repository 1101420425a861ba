"""Environments of several agents: the contract, vectors, conversions, probes and games."""
