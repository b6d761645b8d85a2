import httpx

from tests.api.harness import Server


def test_live_needs_no_key(server: Server) -> None:
    response = httpx.get(f"{server.url}/headstart/v1/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "live"})


def test_ready_follows_the_server(server: Server) -> None:
    assert httpx.get(f"{server.url}/headstart/v1/health/ready").json() == {"status": "ready"}
    server.is_ready[0] = False
    response = httpx.get(f"{server.url}/headstart/v1/health/ready")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert httpx.get(f"{server.url}/headstart/v1/health/live").status_code == 200
