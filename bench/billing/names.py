"""The names of `entries`, from what billing calls the same charge."""

from bench.billing.months import EPOCH_SECONDS

CACHE, KEY = "c", "k"


def request_id(number: int) -> str:
    return f"r{number}"


def name_of(dedupe_key: str) -> str:
    """Of a charge; a correction has the name of what it corrects."""
    parts = dedupe_key.split(":")
    if parts[0] == "storage":
        return f"storage:{int(parts[-1]) - EPOCH_SECONDS}"
    return f"{parts[0]}:{parts[-1]}"
