"""What a message is: its columns, ids and payloads, and many of them in one record. No database, no Spark."""
