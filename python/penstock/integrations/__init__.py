"""Other people's training loops, and monitors. Each module is imported by its own name."""
