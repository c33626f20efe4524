"""What texts cost."""
