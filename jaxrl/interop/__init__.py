"""Exchange with other libraries: weights of policies that were trained elsewhere."""

from jaxrl.interop.importing import convert_weights, import_weights

__all__ = ["convert_weights", "import_weights"]
