"""What is built on a store, once for all databases."""
