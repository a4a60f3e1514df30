"""JSON payloads as columns of a struct, map or array, by the rules of Spark's JSON reader."""
