"""Other runtimes' interfaces over Semel: a program changes one import line."""
