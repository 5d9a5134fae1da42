"""What is kept so that a ps, or the chief, may be lost."""
