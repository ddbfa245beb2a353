"""Scripts import this module to register the backend "xla"; importing torch_xla has already done so."""
