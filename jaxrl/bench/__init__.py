"""`jaxrl benchmark`: suites of runs, resumable, with verdicts that their intervals bear."""
