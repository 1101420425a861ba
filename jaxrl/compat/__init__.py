"""Names and signatures of other libraries: what they are called here, or what to write instead.

`lookup` and `imports` are loaded with jaxrl. All else is imported by name when a name is unknown, so
that no run depends on it: `libraries` answers names of Stable-Baselines3, CleanRL and others,
`rllib` those of RLlib.
"""
