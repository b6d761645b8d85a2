"""What attention backends give a GPU: checked and timed with random weights, by `bench/gpu.sh`. It needs torch and transformers alone."""
