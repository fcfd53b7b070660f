"""The maintenance of the store."""
