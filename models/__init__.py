"""The tables, and every query on them beside its table; no rules, no HTTP, no arithmetic of money."""
