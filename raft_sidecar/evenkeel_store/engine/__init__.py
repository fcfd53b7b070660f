"""The engine of the store."""
