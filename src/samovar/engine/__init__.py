"""The engine: continuous batching over a paged KV cache, in one thread."""
