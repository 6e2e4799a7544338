"""What is computed: types, expressions, ops and graphs."""
