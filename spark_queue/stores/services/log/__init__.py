"""A queue as a log: its messages are kept, and each reader has its own position."""
