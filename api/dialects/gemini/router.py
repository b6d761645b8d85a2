"""The Gemini dialect: the same routes, whatever version the client believes in."""

from fastapi import APIRouter

from api.dialects.gemini import caches, count_tokens, generate, models

VERSIONS = ("v1", "v1beta", "v1alpha")

_routes = APIRouter()
# models last: it ends with a route that refuses every method that was not found before.
for _part in (caches, generate, count_tokens, models):
    _routes.include_router(_part.router)

router = APIRouter()
for _version in VERSIONS:
    router.include_router(_routes, prefix=f"/{_version}")
