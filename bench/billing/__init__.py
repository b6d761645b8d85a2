"""Random lives of caches against an oracle that shares nothing with what it checks."""
