"""Every route has its row in docs/api.md."""

from pathlib import Path

from fastapi.openapi.utils import get_openapi

from api.dialects.gemini.router import VERSIONS, router as gemini
from api.native.router import router as native

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def documented() -> set[tuple[str, str]]:
    cells = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if " | `/" in line]
    return {(row[0], row[1].strip("`")) for row in cells}


def served() -> set[tuple[str, str]]:
    # FastAPI keeps included routers as they are; its OpenAPI writer is the public way to the routes in them.
    paths = get_openapi(title="", version="", routes=[*gemini.routes, *native.routes])["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def of_version(version: str) -> set[tuple[str, str]]:
    prefix = f"/{version}/"
    return {(method, path.removeprefix(prefix)) for method, path in served() if path.startswith(prefix)}


def test_documented_routes_are_those_that_are_served() -> None:
    native_routes = {(method, path) for method, path in served() if path.startswith("/headstart/")}
    gemini_routes = {(method, "/{version}/" + path) for method, path in of_version(VERSIONS[0])}
    assert gemini_routes
    assert documented() == gemini_routes | native_routes


def test_all_versions_serve_the_same_routes() -> None:
    assert of_version("v1") == of_version("v1beta") == of_version("v1alpha")
    assert len(served()) == sum(len(of_version(version)) for version in VERSIONS) + len(
        [path for _, path in served() if path.startswith("/headstart/")]
    )
