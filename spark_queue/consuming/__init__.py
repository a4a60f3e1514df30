"""How a client without Spark consumes: what it holds, how it reserves, how it iterates."""
