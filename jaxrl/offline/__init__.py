"""Recorded data: a format of files, a writer, and readers of it and of other libraries' formats."""
