"""RLlib's names, values and signatures that differ here.

- `settings`: names of settings, and values that stand for several.
- `values`: values of existing settings that ask for nothing, and how they are compared.
- `models`: settings of models, with defaults that ask for nothing.
- `attributes`: methods and attributes of objects, hooks of callbacks and keys of results.
- `imports`: module paths, classes and functions.
- `connectors`: connector pieces, and arguments of functions that make connectors.
- `modules`: modules that take batches, and the models of policies.
- `distributions`: distributions of actions that draw by themselves.
"""
