"""Slower tiers: KV kept outside the arena, in files. Nothing here runs on the engine's thread, or computes on a file."""
