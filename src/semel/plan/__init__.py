"""The contract between compile side and run side."""
