"""Multi-agent particle environments (MPE): physics and tasks."""
