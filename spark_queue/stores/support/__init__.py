"""Parts of a store that are the same for every database."""
