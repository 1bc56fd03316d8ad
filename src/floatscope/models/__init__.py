"""Checkpoints: families as data, visibility, loading without remote code. Knows transformers; nothing of attention."""
