"""Files as devices: what is kept there is read and written by copies, and nothing is computed."""
