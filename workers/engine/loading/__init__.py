"""From a setting to a model folder that can be trusted: find, convert, check, fingerprint. Nothing here needs torch."""
