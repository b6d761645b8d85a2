"""How an address that is listened on is written in a URL."""


def url_host(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
