"""What brings objects to what users want."""
