"""Scripts import it to have the backend "xla" registered, which importing torch_xla has done."""
