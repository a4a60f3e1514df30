"""Messages: columns, ids, payloads, and buckets of many messages. No database, no Spark."""
