"""What a cache is and may become: its states, the leases on it, its end; no HTTP, no torch."""
