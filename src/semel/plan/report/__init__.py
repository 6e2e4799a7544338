"""What a plan says of itself: explanations and profiled runs, as records, text and pages."""
