"""Plan files: their format, and how plans get into and out of them."""
