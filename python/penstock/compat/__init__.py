"""Interfaces of other libraries, on penstock: each module is imported by its own name."""
