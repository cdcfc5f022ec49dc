"""What is done with whole models."""
