"""Prefix trees without a model: large ones to look things up in, small ones to find faults in."""
