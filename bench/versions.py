"""The installed versions of what takes part."""

import platform
from importlib.metadata import version


def versions(*distributions: str) -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in distributions}
