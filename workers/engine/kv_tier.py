"""Where the KV that a request found came from."""

from enum import StrEnum


class KvTier(StrEnum):
    """The slowest place that a request had to wait for, the quickest first; the values are stable, since they are labels of metrics."""

    NONE = "none"  # nothing was there
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REBUILT = "rebuilt"  # a cache's KV was lost and computed again while the request waited
