"""EnvRunners as Ray actors. Nothing here is imported before a config asks for it."""
