"""Arrays and a JSON header as few bytes. Knows numpy, and nothing of Keras."""
