"""What x86 and AArch64 do in their own way, and the emitter that puts all parts together."""
