"""What each operator becomes, by family."""
