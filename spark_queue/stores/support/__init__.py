"""What a store needs besides its database: counters, pauses, splitting of buckets, damaged records."""
