"""Server for simulators that step environments elsewhere; imported only if it is used."""
