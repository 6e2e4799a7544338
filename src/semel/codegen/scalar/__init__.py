"""Code of one thread, for any machine: the parts that every emitter is made of."""
