"""One folder a device, each with a compiler half and a runtime half."""
