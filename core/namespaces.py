"""Whose KV may be read by whom: each project's KV lies under a key that only this server can derive from the project.

Nobody can guess a namespace, so no request finds KV of a project that it does not act for.
"""

import hashlib
import hmac

from core.secret import RootSecret


class Namespaces:
    def __init__(self, secret: RootSecret) -> None:
        self._salt = secret.derive("kv-salt")

    def of(self, project_id: str) -> bytes:
        """Give the 32 bytes under which a project's KV is found; the same after every restart."""
        return hmac.digest(self._salt, project_id.encode(), hashlib.sha256)
