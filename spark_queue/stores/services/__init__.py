"""Services that use a store, written once for all databases."""
