"""`jaxrl benchmark`: resumable suites of runs, and reports based on confidence intervals."""
