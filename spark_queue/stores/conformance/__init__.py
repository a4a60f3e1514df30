"""The tests that every store passes."""
