"""The state_machine of the store."""
