"""How one fused group is computed: loops, loads, stores and scalar values."""
