"""What a graph of steps is: read from a file, checked, and drawn. No database, no Spark."""
