"""Linear algebra by loops over rows and columns: what `semel.linalg` is made of."""
