"""Execution: what feeds an engine, and the engine itself."""
