"""The tap: attention that also counts. Knows tensors; nothing of tokenizers, samplers or files."""
