"""`jaxrl migrate`: rewriting of files that use RLlib, which are read but never run."""
