"""The only home of torch and transformers: prefix KV computed once, read in place by any number of requests."""
