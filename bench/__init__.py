"""Every performance claim, measured beside its peers: `python -m bench ttft | fanout | all`. Nothing imports it."""
