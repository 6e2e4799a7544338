"""Work on several devices: contexts, timelines, transfers, and what orders them."""
