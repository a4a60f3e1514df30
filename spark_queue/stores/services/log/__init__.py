"""A queue as a log: its messages are kept, and each reader has a place of its own."""
