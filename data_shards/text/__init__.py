"""Text: documents of a corpus -> tokens in shards -> sequences of T + 1 tokens."""
