"""The serving of the store."""
