"""The engines that are measured. Each is imported in a process of its own, and by nobody else."""
