"""d3rlpy, a library for recorded data, as a peer."""
